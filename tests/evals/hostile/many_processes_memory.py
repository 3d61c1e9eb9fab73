# Each process has its own bound; what one takes is gone with it.
# expect: passed
# limits: {"address_space": 268435456}
import os


def solve():
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(len(bytes(300 << 20)) and 1)
            except MemoryError:
                os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
            return "took more than its bound"
    return "contained"
