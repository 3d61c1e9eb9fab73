# expect: output_limit
import sys


def solve():
    while True:
        sys.stderr.write("x" * 1000)
