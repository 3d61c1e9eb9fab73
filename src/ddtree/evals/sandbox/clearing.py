"""Ending a process and everything that came from it, so that nothing survives and no zombie stays.

For a process of its own that has no other children and adopts orphans (a child subreaper):
whatever descends from it is then its child in the end, and no child left means nothing left.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass

import psutil

_PATIENCE_S = 20.0
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02
# What is dying by itself is given so many pauses before it is looked for.
_QUIET_PAUSES = 3


class SurvivorError(Exception):
    """Something can't be ended."""


@dataclass(frozen=True)
class Exit:
    """`status` is minus the signal's number where one ended it; `cpu_s` is user and system time of
    all that came from it and has been waited for."""

    status: int
    cpu_s: float


@dataclass(frozen=True)
class _Reaped:
    """`left`: a child is still there."""

    left: bool
    cpu_s: float


def clear_away(pid: int, uid: int | None) -> Exit:
    """Kill the process `pid`, a session's leader, and all that descends from it.

    With `uid`, that of a slot, all processes of it too. SurvivorError where something stays.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    first = _wait(pid)
    cpu_s, pauses, pause = first.cpu_s, 0, _FIRST_PAUSE_S
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        reaped = _reap()
        cpu_s += reaped.cpu_s
        if not reaped.left:
            return Exit(first.status, cpu_s)
        if time.monotonic() > deadline:
            raise SurvivorError(f"a descendant of process {pid} outlives SIGKILL")
        if pauses >= _QUIET_PAUSES:
            _kill_descendants()
            if uid is not None:
                kill_all_of(uid)
        time.sleep(pause)
        pause, pauses = min(2 * pause, _LONGEST_PAUSE_S), pauses + 1


def kill_all_of(uid: int) -> None:
    """Kill every process of `uid` at once, so that none can fork away.

    Done by a child that becomes `uid` itself: it may signal nobody else. Needs root.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            if uid != 0 and os.getresuid() == (uid, uid, uid):
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _wait(pid: int) -> Exit:
    deadline = time.monotonic() + _PATIENCE_S
    pause = _FIRST_PAUSE_S
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            return Exit(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
        if time.monotonic() > deadline:
            raise SurvivorError(f"process {pid} outlives SIGKILL")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _reap() -> _Reaped:
    """Collect what has ended."""
    cpu_s = 0.0
    while True:
        try:
            done, _, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return _Reaped(False, cpu_s)
        if not done:
            return _Reaped(True, cpu_s)
        cpu_s += used.ru_utime + used.ru_stime


def _kill_descendants() -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
