# Right otherwise, and over before anybody can stop it.
# expect: output_limit
import sys


def solve():
    sys.stdout.write("x" * 80_000)
    sys.stdout.flush()
    return "contained"
