# expect: passed
import contextlib
import os
import signal


def solve():
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
    return "contained"
