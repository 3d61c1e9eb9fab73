"""Hundreds of gradings in a row."""

import psutil
import pytest

from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.pool import Sandbox
from ddtree.evals.sandbox.probe import TIERS
from ddtree.evals.tasks import AssertTests
from evals.sandbox.processes import of_uids, workers

pytestmark = pytest.mark.sandbox

GRADINGS = 500
# Each leaves a child behind that nobody waits for.
PROGRAM = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
def solve():
    return 1
"""


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_no_zombie_is_left(tier: str) -> None:
    job = Job(PROGRAM, AssertTests("assert solve() == 1\n"), "solve")
    with Sandbox.open(TIERS[tier](), workers=2) as sandbox:  # type: ignore[index]
        verdicts = list(sandbox.run([job] * GRADINGS))
        assert [verdict.outcome for verdict in verdicts] == ["passed"] * GRADINGS
        assert of_uids(sandbox.uids) == []
        assert [child for worker in workers() for child in worker.children()] == []
    states = [child.status() for child in psutil.Process().children(recursive=True)]
    assert psutil.STATUS_ZOMBIE not in states
    assert workers() == []
