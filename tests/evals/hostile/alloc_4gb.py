# expect: memory


def solve():
    return len(b"x" * (4 << 30))
