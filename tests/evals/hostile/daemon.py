# A grandchild in a session of its own that no polite signal ends, and that would leave a mark.
# expect: passed
import contextlib
import os
import pathlib
import signal
import time


def solve():
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            for _ in range(200):
                time.sleep(0.05)
                with contextlib.suppress(OSError):
                    pathlib.Path("@OUTSIDE@", "mark").write_text("still here")
        os._exit(0)
    os.wait()
    return "contained"
