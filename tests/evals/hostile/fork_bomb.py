# expect: passed
# limits: {"wall_s": 10.0}
import os
import time


def solve():
    made = 0
    try:
        while made < 100:
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            made += 1
    except OSError:
        return "contained" if made < 32 else f"{made} processes"
    return "100 processes"
