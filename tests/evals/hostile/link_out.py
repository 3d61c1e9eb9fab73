# expect: passed
import pathlib


def solve():
    for target in ("/etc/shadow", "@OUTSIDE@/canary", "/proc/1/environ", "/proc/1/root/etc/shadow"):
        link = pathlib.Path("link")
        link.symlink_to(target)
        try:
            return f"read {target}: {link.read_bytes()[:20]!r}"
        except OSError:
            link.unlink()
    return "contained"
