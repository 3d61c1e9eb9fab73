# expect: runtime_error
import os

os._exit(0)
