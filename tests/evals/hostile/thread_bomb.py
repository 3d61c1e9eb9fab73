# expect: passed
import threading
import time


def solve():
    made = 0
    try:
        for _ in range(200):
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
            made += 1
    except RuntimeError:
        return "contained" if made < 32 else f"{made} threads"
    return "200 threads"
