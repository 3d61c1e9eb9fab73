# Folders in folders, closed to everybody: hard to measure and to remove.
# expect: passed, output_limit
import os
import pathlib


def solve():
    for _ in range(300):
        pathlib.Path("d").mkdir()
        os.chdir("d")
    pathlib.Path("file").write_text("x")
    pathlib.Path("file").chmod(0)
    return "contained"
