# Types into the terminal that the evaluation was started from.
# expect: passed
import contextlib
import fcntl
import os

TIOCSTI = 0x5412


def solve():
    typed = []
    files = [0, 1, 2]
    with contextlib.suppress(OSError):
        files.append(os.open("/dev/tty", os.O_RDWR))
    for number in files:
        try:
            fcntl.ioctl(number, TIOCSTI, b"x")
            typed.append(number)
        except OSError:
            pass
    return "contained" if not typed else f"typed into {typed}"
