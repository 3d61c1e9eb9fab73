# expect: passed
import os
import pathlib


def solve():
    if "DDTREE_TEST_SECRET" in os.environ:
        return "inherited"
    for pid in ("self", "1", str(os.getppid())):
        try:
            if b"DDTREE_TEST_SECRET" in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
                return f"read from {pid}"
        except OSError:
            pass
    return "contained"
