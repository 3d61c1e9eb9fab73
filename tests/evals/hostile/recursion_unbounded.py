# expect: memory, killed, timeout, runtime_error
# limits: {"address_space": 268435456, "wall_s": 3.0}
import sys

sys.setrecursionlimit(10**9)


def solve():
    return solve()
