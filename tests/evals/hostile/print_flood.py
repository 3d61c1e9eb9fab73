# expect: output_limit
import sys


def solve():
    while True:
        sys.stdout.write("x" * 1000)
