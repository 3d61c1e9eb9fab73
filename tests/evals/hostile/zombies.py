# Children that nobody waits for.
# expect: passed
import os
import time


def solve():
    for _ in range(20):
        if os.fork() == 0:
            os._exit(0)
    time.sleep(0.1)
    return "contained"
