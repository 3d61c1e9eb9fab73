# expect: passed
import os


def solve():
    done = []
    for name, act in (
        ("setuid", lambda: os.setuid(0)),
        ("setgid", lambda: os.setgid(0)),
        ("setresuid", lambda: os.setresuid(0, 0, 0)),
        ("setgroups", lambda: os.setgroups([0])),
        ("nice", lambda: os.nice(-5)),
    ):
        try:
            act()
            done.append(name)
        except OSError:
            pass
    if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()):
        done.append("is root")
    return "contained" if not done else f"managed {done}"
