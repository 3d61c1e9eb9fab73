"""A worker process: runs one job at a time in a sandbox, and clears away after each.

A process of its own, since it adopts every orphan and ends all of its children.
"""

import contextlib
import dataclasses
import os
import secrets
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from ddtree.evals.outcomes import Verdict
from ddtree.evals.sandbox.clearing import SurvivorError, kill_all_of
from ddtree.evals.sandbox.folder import work_folder
from ddtree.evals.sandbox.inside.guard import PR_SET_CHILD_SUBREAPER, prctl
from ddtree.evals.sandbox.inside.tagged import UntoldError
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.judge import judge
from ddtree.evals.sandbox.payload import Channel, payload
from ddtree.evals.sandbox.process import Bounds, Ended, HangUpError, run_process
from ddtree.evals.sandbox.slot import claim_slot
from ddtree.evals.sandbox.tier import Place, Tier
from ddtree.evals.tasks import IOCase, StdinTests


@dataclass(frozen=True)
class Station:
    """Where a worker runs its jobs: `base` holds work folders, `uid` is the slot's, `hangup` the
    file that is readable once the parent is gone."""

    tier: Tier
    base: Path
    uid: int | None
    hangup: int


def run_job(station: Station, job: Job) -> Verdict:
    """The verdict on a job; a script's first failing case decides, and seconds are of all its runs.

    What goes wrong with the sandbox itself is a sandbox_error, never a wrong answer.
    """
    cases: tuple[IOCase | None, ...] = (None,)
    if isinstance(job.tests, StdinTests):
        cases = job.tests.cases
    verdict = Verdict("sandbox_error", "no test cases")
    seconds = 0.0
    for number, case in enumerate(cases, start=1):
        word = secrets.token_hex(16)
        try:
            ended = _run(station, job, word, case)
        except (OSError, SurvivorError, UntoldError) as error:
            return Verdict("sandbox_error", f"{type(error).__name__}: {error}", seconds)
        verdict = judge(job, ended, word, case)
        seconds += verdict.seconds
        if not verdict.passed:
            if case is not None:
                detail = f"case {number}: {verdict.detail}"
                verdict = dataclasses.replace(verdict, detail=detail)
            break
    return dataclasses.replace(verdict, seconds=seconds)


def _run(station: Station, job: Job, word: str, case: IOCase | None) -> Ended:
    with contextlib.ExitStack() as stack:
        path = None
        if station.tier.work_folder:
            path = stack.enter_context(work_folder(station.base, station.uid))
        place = Place(station.uid, None if path is None else str(path), _others(station))
        launch = station.tier.launch(place, job.limits)

        def sent(descriptor: int) -> bytes:
            channel = Channel(descriptor, word)
            stdin = "" if case is None else case.stdin
            return payload(launch.sources, launch.guard, job, channel, stdin)

        bounds = _bounds(job, case, path)
        return run_process(launch, sent, bounds, station.uid, station.hangup)


def _bounds(job: Job, case: IOCase | None, path: Path | None) -> Bounds:
    limits = job.limits
    expected = 0 if case is None else len(case.stdout.encode(errors="surrogateescape"))
    return Bounds(
        wall_s=limits.wall_s,
        output=max(limits.output, 2 * expected),
        results=limits.results,
        folder=limits.folder,
        path=path,
    )


def _others(station: Station) -> int:
    """How many processes and threads the run's uid has: many where it is the user's own."""
    if station.uid is not None:
        return 0
    own = os.getuid()
    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == own:
                found += process.num_threads()
    return found


def main(descriptor: int) -> None:
    """Take a tier and a folder from the parent, tell the slot's uid, and then run jobs until the
    parent hangs up."""
    connection = Connection(descriptor)
    os.set_inheritable(descriptor, False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    tier, base = connection.recv()
    slot = claim_slot() if tier.own_uid else None
    if slot is not None:
        # Left by a worker that was killed.
        kill_all_of(slot.uid)
    station = Station(tier, base, None if slot is None else slot.uid, descriptor)
    connection.send(station.uid)
    with contextlib.suppress(EOFError, ConnectionError, HangUpError):
        while True:
            connection.send(run_job(station, connection.recv()))
    # Whoever made it may be gone; not empty where another worker is not done yet.
    with contextlib.suppress(OSError):
        base.rmdir()


if __name__ == "__main__":
    main(int(sys.argv[1]))
