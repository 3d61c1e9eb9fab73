# expect: timeout
# limits: {"wall_s": 1.0}
import os
import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)


def solve():
    while True:
        try:
            os.fork()
            os.setsid()
        except OSError:
            time.sleep(0.001)
