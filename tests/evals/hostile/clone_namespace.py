# By the call that makes processes, old and new.
# expect: passed
import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
CLONE = 56 if platform.machine() == "x86_64" else 220
CLONE3 = 435
SIGCHLD = 17


def solve():
    for flag in (0x10000000, 0x40000000, 0x20000):
        pid = libc.syscall(CLONE, ctypes.c_ulong(flag | SIGCHLD), None, None, None, 0)
        if pid == 0:
            os._exit(0)
        if pid > 0:
            return f"clone with {flag:#x}"
    arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, SIGCHLD, 0, 0, 0)
    pid = libc.syscall(CLONE3, arguments, ctypes.c_size_t(64))
    if pid == 0:
        os._exit(0)
    return "contained" if pid < 0 else "clone3"
