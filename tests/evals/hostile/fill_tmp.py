# expect: passed, output_limit
import pathlib
import tempfile
import time


def solve():
    folder = pathlib.Path(tempfile.gettempdir())
    for number in range(64):
        try:
            (folder / str(number)).write_bytes(bytes(8 << 20))
        except OSError:
            return "contained"
        time.sleep(0.02)
    return "wrote 512 MB"
