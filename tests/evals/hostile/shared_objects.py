# Memory and semaphores of the old kind outlive whoever makes them.
# expect: passed
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
CREATE = 0o1000 | 0o600


def solve():
    made = []
    if libc.shmget(0, ctypes.c_size_t(4096), CREATE) >= 0:
        made.append("memory")
    if libc.semget(0, 1, CREATE) >= 0:
        made.append("semaphore")
    if libc.msgget(0, CREATE) >= 0:
        made.append("queue")
    return "contained" if not made else f"made {made}"
