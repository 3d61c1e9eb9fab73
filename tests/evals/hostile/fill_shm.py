# expect: passed
import pathlib


def solve():
    try:
        pathlib.Path("/dev/shm/filled").write_bytes(bytes(8 << 20))
    except OSError:
        return "contained"
    return "wrote 8 MB of shared memory"
