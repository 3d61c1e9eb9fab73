# Everything but writing: modes, owners, names, links, times.
# expect: passed
import os
import pathlib


def solve():
    canary = pathlib.Path("@OUTSIDE@", "canary")
    done = []
    for name, act in (
        ("chmod", lambda: canary.chmod(0o777)),
        ("chown", lambda: os.chown(canary, os.getuid(), os.getgid())),
        ("rename", lambda: canary.rename(canary.with_name("renamed"))),
        ("unlink", canary.unlink),
        ("link", lambda: pathlib.Path("linked").hardlink_to(canary)),
        ("touch", lambda: os.utime(canary, (0, 0))),
        ("truncate", lambda: os.truncate(canary, 0)),
        ("mkdir", lambda: canary.with_name("made").mkdir()),
    ):
        try:
            act()
            done.append(name)
        except OSError:
            pass
    return "contained" if not done else f"managed to {done}"
