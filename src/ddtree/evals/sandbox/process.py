"""One sandboxed process from start to end: fed, listened to, bounded, cleared away."""

import errno
import os
import selectors
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Self

from ddtree.evals.sandbox.clearing import clear_away
from ddtree.evals.sandbox.tier import Launch

Stop = Literal["end", "wall", "output", "results", "folder"]
"""Why it is over: by itself, or for going over a bound."""

_CHUNK = 1 << 16
_LOOK_S = 0.1
# What a start may take on a busy machine; the program's own time begins with its runner's word.
_START_S = 30.0
# What a name costs that holds nothing.
_ENTRY = 4096


class HangUpError(Exception):
    """Whoever asked for the run is gone."""


@dataclass(frozen=True)
class Bounds:
    """`output`, `results` and `folder` in bytes; `path` is the folder to watch, if any."""

    wall_s: float
    output: int
    results: int
    folder: int
    path: Path | None


@dataclass(frozen=True)
class Ended:
    """`status` is minus the signal's number where one ended it. `report` is what came on the
    runner's own channel."""

    stop: Stop
    status: int
    stdout: bytes
    stderr: bytes
    report: bytes
    seconds: float
    cpu_s: float


def run_process(
    launch: Launch,
    payload: Callable[[int], bytes],
    bounds: Bounds,
    uid: int | None,
    hangup: int | None = None,
) -> Ended:
    """Run to the end or to a bound; nothing is left of it afterwards.

    `payload` makes the standard input, given the number of the file that reports are written to.
    `uid` is the slot's. HangUpError once the file `hangup` is readable. OSError where the command
    can't be started, SurvivorError where it can't be ended.
    """
    reading, writing = os.pipe()
    started = time.monotonic()
    with os.fdopen(reading, "rb", buffering=0) as report:
        try:
            sent = payload(writing)
            process = subprocess.Popen(
                launch.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(launch.env),
                cwd=launch.cwd,
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        with process:
            try:
                with _Watch(process, report, sent, bounds) as watch:
                    stop = watch.until_end(hangup)
            finally:
                seconds = time.monotonic() - started
                left = clear_away(process.pid, uid)
                process.returncode = left.status
            stop = watch.rest(stop)
    return Ended(
        stop=stop,
        status=left.status,
        stdout=bytes(watch.said["stdout"]),
        stderr=bytes(watch.said["stderr"]),
        report=bytes(watch.said["report"]),
        seconds=seconds,
        cpu_s=left.cpu_s,
    )


class _Watch:
    """Feeds a process and keeps what it says."""

    def __init__(
        self, process: subprocess.Popen[bytes], report: IO[bytes], sent: bytes, bounds: Bounds
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.said = {"stdout": bytearray(), "stderr": bytearray(), "report": bytearray()}
        self._bounds = bounds
        self._sent = memoryview(sent)
        self._stdin = process.stdin
        self._open = {"stdout": process.stdout, "stderr": process.stderr, "report": report}
        self._looked = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._end = os.pidfd_open(process.pid)
        self._selector.register(self._end, selectors.EVENT_READ, "end")
        os.set_blocking(self._stdin.fileno(), False)
        self._selector.register(self._stdin, selectors.EVENT_WRITE, "stdin")
        for name, stream in self._open.items():
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        os.close(self._end)

    def until_end(self, hangup: int | None) -> Stop:
        """Until the process is over, or has to be."""
        if hangup is not None:
            self._selector.register(hangup, selectors.EVENT_READ, "hangup")
        begun, deadline = False, time.monotonic() + _START_S
        while (left := deadline - time.monotonic()) > 0:
            names = [key.data for key, _ in self._selector.select(min(left, _LOOK_S))]
            if "hangup" in names:
                raise HangUpError("whoever asked for the run is gone")
            for name in names:
                if name == "stdin":
                    self._feed()
                elif name != "end":
                    self._hear(name)
            if not begun and self.said["report"]:
                begun, deadline = True, time.monotonic() + self._bounds.wall_s
            stop = self._over(look=time.monotonic() - self._looked > _LOOK_S)
            if stop != "end" or "end" in names:
                return stop
        return "wall"

    def rest(self, stop: Stop) -> Stop:
        """Hear what is left once all who could speak are dead; whether that is too much after
        all."""
        for name in list(self._open):
            while name in self._open and self._hear(name):
                pass
        return self._over(look=True) if stop == "end" else stop

    def _feed(self) -> None:
        try:
            self._sent = self._sent[os.write(self._stdin.fileno(), self._sent[:_CHUNK]) :]
        except BrokenPipeError:
            self._sent = self._sent[:0]
        if not self._sent:
            self._selector.unregister(self._stdin)
            self._stdin.close()

    def _hear(self, name: str) -> bool:
        """Take one piece; whether there was one."""
        try:
            piece = os.read(self._open[name].fileno(), _CHUNK)
        except BlockingIOError:
            return False
        self.said[name] += piece
        if not piece:
            stream = self._open.pop(name)
            if self._selector.get_map() is not None:
                self._selector.unregister(stream)
        return bool(piece)

    def _over(self, look: bool) -> Stop:
        """Which bound is passed; "end" for none."""
        if len(self.said["stdout"]) + len(self.said["stderr"]) > self._bounds.output:
            return "output"
        if len(self.said["report"]) > self._bounds.results:
            return "results"
        if look and self._bounds.path is not None:
            self._looked = time.monotonic()
            if _is_larger(self._bounds.path, self._bounds.folder):
                return "folder"
        return "end"


def _is_larger(folder: Path, most: int) -> bool:
    """Whether files in `folder` hold more than `most` bytes, or hide what they hold."""
    waiting, total = [str(folder)], 0
    while waiting and total <= most:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += _ENTRY + entry.stat(follow_symlinks=False).st_size
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:
            # Nested too deep for a path, or closed to us. Anything else vanished meanwhile.
            if error.errno in (errno.ENAMETOOLONG, errno.EACCES):
                return True
    return total > most
