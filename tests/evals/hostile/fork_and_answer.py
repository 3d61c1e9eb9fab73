# Both processes come back from here, and the child would run the tests as well.
# expect: assertion
import os


def solve():
    return "contained" if os.fork() == 0 else "the parent's"
