# expect: assertion
# tests: call


def solve():
    value = []
    for _ in range(100_000):
        value = [value]
    return value
