# expect: passed
import os
import stat


def solve():
    for name, number in (("disk", os.makedev(8, 0)), ("memory", os.makedev(1, 1))):
        for kind in (stat.S_IFBLK, stat.S_IFCHR):
            try:
                os.mknod(f"{name}-{kind}", kind | 0o666, number)
            except OSError:
                continue
            return f"made {name}"
    return "contained"
