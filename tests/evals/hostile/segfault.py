# expect: killed
import ctypes


def solve():
    return ctypes.string_at(0)
