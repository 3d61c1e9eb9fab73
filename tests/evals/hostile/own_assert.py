# expect: own_assert


def solve():
    return "contained"


assert solve() == "something else"
