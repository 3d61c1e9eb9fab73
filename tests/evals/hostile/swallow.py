# Catches whatever might end it.
# expect: timeout
# limits: {"wall_s": 1.0}
import contextlib
import time


def solve():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)
