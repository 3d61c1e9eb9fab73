# expect: killed
import os


def solve():
    os.abort()
