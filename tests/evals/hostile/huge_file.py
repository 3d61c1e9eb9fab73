# expect: passed
import pathlib
import tempfile


def solve():
    path = pathlib.Path(tempfile.gettempdir(), "large")
    try:
        with path.open("wb") as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
    except OSError:
        size = path.stat().st_size
        path.unlink()
        return "contained" if size <= 16 << 20 else f"a file of {size} bytes"
    return "a file of 64 MB"
