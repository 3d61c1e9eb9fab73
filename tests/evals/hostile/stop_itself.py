# expect: timeout
# limits: {"wall_s": 1.0}
import os
import signal


def solve():
    os.kill(os.getpid(), signal.SIGSTOP)
    return "contained"
