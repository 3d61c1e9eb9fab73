# expect: runtime_error


def solve():
    return solve()
