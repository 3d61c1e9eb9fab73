# expect: passed
import os
import pathlib


def solve():
    for pid in (os.getppid(), 1):
        for name in ("mem", "maps", "fd", "root", "cwd"):
            path = pathlib.Path(f"/proc/{pid}/{name}")
            try:
                found = list(path.iterdir()) if path.is_dir() else path.open("rb").read(1)
            except OSError:
                continue
            return f"opened {path}: {found}"
    return "contained"
