# expect: passed
import contextlib
import pathlib

FILES = (
    "/etc/shadow",
    "/etc/passwd",
    "/root/.bashrc",
    "/work/shared/DESIGN.md",
    "@OUTSIDE@/canary",
)
FOLDERS = ("/root", "/home", "/work", "/etc/ssl", "/var", "@OUTSIDE@")


def solve():
    found = []
    for name in FILES:
        with contextlib.suppress(OSError):
            found.append(pathlib.Path(name).read_bytes()[:10])
    for name in FOLDERS:
        with contextlib.suppress(OSError):
            found += list(pathlib.Path(name).iterdir())
    return "contained" if not found else f"found {found}"
