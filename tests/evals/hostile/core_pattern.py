# expect: passed
import pathlib


def solve():
    opened = []
    for name in ("kernel/core_pattern", "vm/drop_caches", "kernel/modprobe", "kernel/sysrq"):
        try:
            pathlib.Path("/proc/sys", name).open("r+b").close()
            opened.append(name)
        except OSError:
            pass
    return "contained" if not opened else f"opened {opened}"
