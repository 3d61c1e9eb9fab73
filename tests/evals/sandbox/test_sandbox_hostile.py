"""Programs that mean harm, or do harm by accident: each is contained, and gets its verdict.

They are files of `evals/hostile`, whose first lines say what is expected of them.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.pool import Sandbox
from ddtree.evals.sandbox.probe import TIERS
from ddtree.evals.tasks import AssertTests, CallTests
from evals.sandbox.processes import of_uids

pytestmark = pytest.mark.sandbox

FOLDER = Path(__file__).parents[1] / "hostile"
PROGRAMS = sorted(FOLDER.glob("*.py"))
TESTS = {
    "assert": AssertTests('assert solve() == "contained"\n'),
    "call": CallTests(((),), ("contained",)),
}
# Where a program might leave something.
SHARED = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True)
class Hostile:
    expected: tuple[str, ...]
    job: Job


def hostile(path: Path, outside: Path) -> Hostile:
    source = path.read_text()
    head = dict(
        line.removeprefix("# ").split(": ", 1)
        for line in source.splitlines()
        if line.startswith(("# expect: ", "# limits: ", "# tests: "))
    )
    limits = Limits(**json.loads(head.get("limits", "{}")))
    program = source.replace("@OUTSIDE@", str(outside))
    job = Job(program, TESTS[head.get("tests", "assert")], "solve", limits)
    return Hostile(tuple(head["expect"].split(", ")), job)


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def sandbox(request) -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDTREE_TEST_SECRET", "of the evaluation's own")
        with Sandbox.open(TIERS[request.param]()) as opened:
            yield opened


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """A folder that any uid may do as it likes in, and a file that any may read."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "canary").write_text("untouched")
        (folder / "canary").chmod(0o644)
        yield folder


def left(sandbox: Sandbox) -> list[Path]:
    """Files of the sandbox's uids, two levels deep."""
    found = []
    for folder in SHARED:
        for pattern in ("*", "*/*"):
            for path in Path(folder).glob(pattern):
                # Others come and go meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if path.lstat().st_uid in sandbox.uids:
                        found.append(path)
    return found


def test_there_are_enough() -> None:
    assert len(PROGRAMS) >= 40


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_is_contained(path: Path, sandbox: Sandbox, outside: Path) -> None:
    tried = hostile(path, outside)
    before = (outside / "canary").stat()
    assert sandbox.uids
    (verdict,) = sandbox.run([tried.job])
    assert verdict.outcome in tried.expected, verdict
    assert of_uids(sandbox.uids) == []
    assert left(sandbox) == []
    assert [found.name for found in outside.iterdir()] == ["canary"]
    assert (outside / "canary").read_text() == "untouched"
    after = (outside / "canary").stat()
    assert (before.st_mode, before.st_mtime, before.st_nlink) == (
        after.st_mode,
        after.st_mtime,
        after.st_nlink,
    )
