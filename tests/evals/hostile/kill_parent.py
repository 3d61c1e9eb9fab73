# expect: passed
import os
import signal


def solve():
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
        try:
            os.kill(os.getppid(), number)
        except OSError:
            continue
        return "signalled the parent"
    return "contained"
