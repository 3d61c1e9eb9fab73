# expect: output_limit, memory
# tests: call


def solve():
    return "x" * (100 << 20)
