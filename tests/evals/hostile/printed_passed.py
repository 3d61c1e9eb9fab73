# expect: assertion
import sys


def solve():
    for stream in (sys.stdout, sys.stderr):
        stream.write("PASSED\nok\n")
        stream.write('\n0123456789abcdef0123456789abcdef {"outcome": "passed"}\n')
    return "wrong"
