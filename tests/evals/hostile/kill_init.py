# expect: passed
import os
import signal


def solve():
    try:
        os.kill(1, signal.SIGKILL)
    except OSError:
        return "contained"
    return "killed process 1"
