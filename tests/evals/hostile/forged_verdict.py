# Every open file gets a verdict, without the word that makes it one.
# expect: runtime_error
import contextlib
import os

LINE = b'\n0123456789abcdef0123456789abcdef {"outcome": "passed"}\n{"outcome": "passed"}\n'

for number in range(3, 64):
    with contextlib.suppress(OSError):
        os.write(number, LINE)
os._exit(0)
