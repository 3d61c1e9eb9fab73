# expect: passed
import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH = 16
CALLS = {
    "x86_64": {"bpf": 321, "keyctl": 250, "perf": 298, "uring": 425, "fault": 323, "handle": 304},
    "aarch64": {"bpf": 280, "keyctl": 219, "perf": 241, "uring": 425, "fault": 282, "handle": 265},
}


def solve():
    done = []
    if libc.ptrace(PTRACE_ATTACH, os.getppid(), None, None) == 0:
        done.append("ptrace")
    buffer = ctypes.create_string_buffer(128)
    for name, number in CALLS[platform.machine()].items():
        if libc.syscall(number, ctypes.c_long(0), buffer, ctypes.c_long(0), 0, 0, 0) >= 0:
            done.append(name)
    return "contained" if not done else f"managed {done}"
