"""Who runs on this machine, and waiting until it is so."""

import contextlib
import time
from collections.abc import Callable, Sequence

import psutil


def of_uids(uids: Sequence[int]) -> list[str]:
    """Processes of these uids in words, zombies included; but for those zombies that a killed
    worker left to process 1, which collects them when it likes."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            dead = process.status() == psutil.STATUS_ZOMBIE and process.ppid() == 1
            if process.uids().real in uids and not dead:
                found.append(f"{process.pid} {process.name()} ({process.status()})")
    return found


def workers() -> list[psutil.Process]:
    """This process's sandbox workers."""
    return [
        child
        for child in psutil.Process().children()
        if "ddtree.evals.sandbox.worker" in child.cmdline()
    ]


def wait_for(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it holds in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
