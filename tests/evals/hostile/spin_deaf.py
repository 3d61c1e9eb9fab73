# Ignores the signal of the soft limit.
# expect: timeout
# limits: {"cpu_s": 1.0}
import signal

signal.signal(signal.SIGXCPU, signal.SIG_IGN)


def solve():
    while True:
        pass
