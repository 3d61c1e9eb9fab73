"""Worker processes, and jobs handed out to them."""

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Self

from ddtree.errors import ConfigError
from ddtree.evals.outcomes import Verdict
from ddtree.evals.sandbox.folder import remove
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.tier import Tier

_START_S = 60.0
_GOODBYE_S = 30.0
# How often the worker of a slot may die and be started again.
_RESTARTS = 1


class _Worker:
    """One worker process; `job` is the number of the job that it is at."""

    def __init__(self, tier: Tier, base: Path) -> None:
        self.connection, theirs = Pipe()
        self.job: int | None = None
        self.uid: int | None = None
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "ddtree.evals.sandbox.worker",
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "PYTHONSAFEPATH": "1",
                },
                pass_fds=(theirs.fileno(),),
                # Interrupts go to the parent alone, which hangs up.
                start_new_session=True,
            )
        self.connection.send((tier, base))

    def ready(self) -> None:
        """Wait until it takes jobs; ConfigError where it does not."""
        try:
            if self.connection.poll(_START_S):
                self.uid = self.connection.recv()
                return
        except (EOFError, OSError):
            pass
        status = self.end()
        raise ConfigError(f"a sandbox's worker did not start (status {status}); see its traceback")

    def end(self) -> int:
        """Hang up, wait for its end, return its exit status."""
        self.connection.close()
        try:
            return self._process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Sandbox:
    """`workers` jobs at a time, each in a sandbox of its own.

    A context manager; ConfigError where a worker can't start. Verdicts do not depend on the number
    of workers, as long as each has a core of its own.
    """

    def __init__(self, tier: Tier, workers: int = 1) -> None:
        if workers < 1:
            raise ConfigError(f"workers: got {workers}, expected at least 1")
        self.tier = tier
        self._base = Path(tempfile.mkdtemp(prefix="ddtree-sandbox-"))
        # Passed through by other uids, listed by none.
        self._base.chmod(0o711)
        self._slots: list[_Worker | None] = [None] * workers
        self._restarts = [_RESTARTS] * workers
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, tier: Tier, workers: int = 1) -> Self:
        """The same as the constructor."""
        return cls(tier, workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def uids(self) -> tuple[int, ...]:
        """The uids that programs run under; empty where it is this process's."""
        return tuple(w.uid for w in self._slots if w is not None and w.uid is not None)

    def close(self) -> None:
        """End the workers, and what they run."""
        for number, worker in enumerate(self._slots):
            self._slots[number] = None
            if worker is not None:
                worker.end()
        remove(self._base)

    def run(self, jobs: Sequence[Job]) -> Iterator[Verdict]:
        """A verdict for each job, in their order; jobs run ahead of what is asked for.

        A job whose worker dies is a sandbox_error, and the worker is started again once; with no
        worker left the rest are sandbox errors as well.
        """
        waiting = deque(enumerate(jobs))
        done: dict[int, Verdict] = {}
        self._fill()
        try:
            self._hand_out(waiting, done)
            for number in range(len(jobs)):
                while number not in done:
                    self._collect(done)
                    self._hand_out(waiting, done)
                yield done.pop(number)
        finally:
            self._drop_unfinished()

    def _fill(self) -> None:
        """Start what is not there and may be."""
        fresh = []
        for place, there in enumerate(self._slots):
            if there is None and self._restarts[place] >= 0:
                worker = self._slots[place] = _Worker(self.tier, self._base)
                fresh.append(worker)
        for worker in fresh:
            worker.ready()

    def _hand_out(self, waiting: deque[tuple[int, Job]], done: dict[int, Verdict]) -> None:
        for place, worker in enumerate(self._slots):
            if worker is not None and worker.job is None and waiting:
                worker.job, job = waiting.popleft()
                try:
                    worker.connection.send(job)
                except OSError:
                    self._died(place, done)
        if all(worker is None for worker in self._slots):
            lost = Verdict("sandbox_error", "no worker is left to run it")
            done.update((number, lost) for number, _ in waiting)
            waiting.clear()

    def _collect(self, done: dict[int, Verdict]) -> None:
        """Wait for at least one verdict, if any is to come."""
        busy = {
            worker.connection: place
            for place, worker in enumerate(self._slots)
            if worker is not None and worker.job is not None
        }
        for connection in wait(list(busy)) if busy else ():
            assert isinstance(connection, Connection)
            place = busy[connection]
            worker = self._slots[place]
            assert worker is not None
            try:
                verdict = connection.recv()
            except (EOFError, OSError):
                self._died(place, done)
            else:
                assert worker.job is not None
                done[worker.job] = verdict
                worker.job = None

    def _died(self, place: int, done: dict[int, Verdict]) -> None:
        worker = self._slots[place]
        assert worker is not None
        assert worker.job is not None
        status = worker.end()
        done[worker.job] = Verdict("sandbox_error", f"its worker died with status {status}")
        self._slots[place] = None
        self._restarts[place] -= 1
        self._fill()

    def _drop_unfinished(self) -> None:
        """Workers at jobs that nobody waits for any more."""
        for place, worker in enumerate(self._slots):
            if worker is not None and worker.job is not None:
                worker.end()
                self._slots[place] = None
