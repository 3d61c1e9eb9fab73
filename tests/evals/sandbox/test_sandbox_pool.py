"""Workers: verdicts in order and the same for any number of them, nothing left behind, no death
unnoticed."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ddtree.errors import ConfigError
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.pool import Sandbox
from ddtree.evals.sandbox.probe import TIERS
from ddtree.evals.tasks import AssertTests, CallTests, IOCase, StdinTests
from evals.sandbox.holes import GUARD, RESULTS, RUNNER, Holed
from evals.sandbox.processes import of_uids, wait_for, workers

pytestmark = pytest.mark.sandbox

CONFINED = ("bubblewrap", "landlock")
TESTS = AssertTests("assert f() == 1\n")
RIGHT = Job("def f():\n    return 1\n", TESTS, "f")
WRONG = Job("def f():\n    return 2\n", TESTS, "f")
SLOW = Job("import time\ntime.sleep(60)\n", TESTS, "f", Limits(wall_s=60.0))


def busy(program: str) -> Job:
    return Job(program, TESTS, "f", Limits(wall_s=1.0))


MIXED = (
    RIGHT,
    WRONG,
    busy("def f():\n    while True:\n        pass\n"),
    Job("def f(:\n", TESTS, "f"),
    Job("def f():\n    return [0] * (1 << 30)\n", TESTS, "f"),
    Job("def f():\n    return 1\n1 / 0\n", TESTS, "f"),
    Job("def f():\n    return {1: [2]}\n", CallTests(((),), None), "f"),
    busy(
        "import os\ndef f():\n    while True:\n        try:\n            os.fork()\n"
        "        except OSError:\n            pass\n"
    ),
    Job("print(input())\n", StdinTests((IOCase("a\n", "a"), IOCase("b\n", "c"))), None),
    Job("import os\nos.abort()\n", TESTS, "f"),
    RIGHT,
)


@pytest.mark.parametrize("tier", CONFINED)
def test_verdicts_are_the_same_with_four_workers(tier: str) -> None:
    """In the order of the jobs, and one's bombs are no other's limit."""
    found = []
    for count in (1, 4):
        with Sandbox.open(TIERS[tier](), count) as sandbox:
            assert len(set(sandbox.uids)) == count
            verdicts = list(sandbox.run(MIXED))
            found.append([(v.outcome, v.detail, v.values) for v in verdicts])
    assert found[0] == found[1]
    assert [outcome for outcome, _, _ in found[0]] == [
        *("passed", "assertion", "timeout", "syntax", "memory", "runtime_error", "passed"),
        *("timeout", "assertion", "killed", "passed"),
    ]


@pytest.mark.parametrize(("tier", "count"), [("landlock", 400), ("bubblewrap", 100)])
def test_hundreds_of_runs_leave_nothing(tier: str, count: int) -> None:
    """A tenth of them leave a child behind."""
    leaves = Job(
        "import os, time\ndef f():\n    if os.fork() == 0:\n        time.sleep(60)\n    return 1\n",
        TESTS,
        "f",
    )
    jobs = [leaves if number % 10 == 0 else (RIGHT, WRONG)[number % 2] for number in range(count)]
    with Sandbox.open(TIERS[tier](), 2) as sandbox:
        verdicts = list(sandbox.run(jobs))
        assert [v.outcome for v in verdicts] == [
            "passed" if job is not WRONG else "assertion" for job in jobs
        ]
        assert len(workers()) == 2
        assert [child for worker in workers() for child in worker.children(recursive=True)] == []
        assert of_uids(sandbox.uids) == []
    assert workers() == []


@pytest.mark.parametrize(
    ("hole", "words"),
    [
        ("no command", "FileNotFoundError"),
        ("bad option", "no-such-option"),
        ("not python", "not started: status 0"),
    ],
)
def test_a_failed_start_is_no_wrong_answer(hole: str, words: str) -> None:
    with Sandbox.open(Holed(TIERS["bubblewrap"](), hole)) as sandbox:
        for verdict in sandbox.run([RIGHT, WRONG]):
            assert verdict.outcome == "sandbox_error"
            assert words in verdict.detail


def test_a_guard_that_fails_lets_nothing_run() -> None:
    edit = (GUARD, "os.setresuid(uid, uid, uid)", "pass")
    with Sandbox.open(Holed(TIERS["bubblewrap"](), edit=edit)) as sandbox:
        (verdict,) = sandbox.run([RIGHT])
    assert verdict.outcome == "sandbox_error"
    assert "PermissionError" in verdict.detail


def test_a_slow_start_takes_nothing_from_the_program() -> None:
    edit = (GUARD, "os.umask(0o077)", "__import__('time').sleep(0.6)")
    with Sandbox.open(Holed(TIERS["landlock"](), edit=edit)) as sandbox:
        (verdict,) = sandbox.run([Job(RIGHT.program, TESTS, "f", Limits(wall_s=0.5))])
    assert verdict.passed
    assert verdict.seconds > 0.6


def test_a_dead_worker_is_replaced_once() -> None:
    with Sandbox.open(TIERS["landlock"]()) as sandbox:
        for expected in ("passed", "sandbox_error"):
            run = sandbox.run([RIGHT, SLOW, RIGHT])
            assert next(run).passed
            assert wait_for(lambda: of_uids(sandbox.uids) != [])
            (worker,) = workers()
            worker.send_signal(signal.SIGKILL)
            lost, last = run
            assert lost.outcome == "sandbox_error"
            assert "worker" in lost.detail
            assert last.outcome == expected
            assert wait_for(lambda: of_uids(sandbox.uids) == [])
    assert workers() == []


def test_what_nobody_waits_for_is_ended() -> None:
    with Sandbox.open(TIERS["bubblewrap"]()) as sandbox:
        run = sandbox.run([RIGHT, SLOW])
        assert next(run).passed
        uids = sandbox.uids
        run.close()
        assert of_uids(uids) == []
        assert [verdict.outcome for verdict in sandbox.run([RIGHT, WRONG])] == [
            "passed",
            "assertion",
        ]


@pytest.mark.parametrize("tier", CONFINED)
def test_nothing_outlives_the_evaluation_itself(tier: str, tmp_path: Path) -> None:
    """Killed outright, with a program in each of two sandboxes."""
    program = f"""
        from ddtree.evals.sandbox.pool import Sandbox
        from ddtree.evals.sandbox.probe import TIERS
        from evals.sandbox.test_sandbox_pool import SLOW
        with Sandbox.open(TIERS[{tier!r}](), 2) as sandbox:
            print(sandbox._base, *sandbox.uids, flush=True)
            list(sandbox.run([SLOW, SLOW]))
    """
    script = tmp_path / "evaluation.py"
    script.write_text(textwrap.dedent(program))
    env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        base, *names = process.stdout.readline().decode().split()
        uids = [int(name) for name in names]
        assert len(uids) == 2
        assert wait_for(lambda: all(of_uids([uid]) for uid in uids))
        process.kill()
    assert wait_for(lambda: of_uids(uids) == [])
    assert wait_for(lambda: not Path(base).exists())


def test_workers_of_other_evaluations_have_other_uids() -> None:
    tier = TIERS["bubblewrap"]()
    with Sandbox.open(tier, 2) as one, Sandbox.open(tier) as other:
        assert len({*one.uids, *other.uids}) == 3


def test_no_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers: got 0"):
        Sandbox.open(TIERS["bubblewrap"](), 0)


# Bugs in what runs inside: each makes a wrong program pass, or another verdict of it.
FORGED = Job(
    "class A:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
    "def f():\n    return A()\n",
    TESTS,
    "f",
)
EXITS = Job("import sys\ndef f():\n    sys.exit(0)\n", TESTS, "f")
OWN_ASSERT = Job("def f():\n    return 1\nassert False\n", TESTS, "f")
FORKS = Job("import os\ndef f():\n    return 1 if os.fork() == 0 else os.wait()\n", TESTS, "f")
EXIT_PASSES = """try:
            exec(tests, names)
        except SystemExit:
            pass"""
BUGS = {
    "results are not guarded": (
        (RUNNER, "names[name] = guarded(names[name], refused)", "pass"),
        FORGED,
        "assertion",
    ),
    "classes of a program's own pass": (
        (RESULTS, "if _made_by_a_program(kind):", "if False:"),
        FORGED,
        "assertion",
    ),
    "an exit in the tests is a pass": (
        (RUNNER, "exec(tests, names)", EXIT_PASSES),
        EXITS,
        "runtime_error",
    ),
    "tests do not run": ((RUNNER, "exec(tests, names)", "pass"), WRONG, "assertion"),
    "an assertion of its own is one of the tests": (
        (RUNNER, 'return _found("own_assert")', 'return _found("assertion")'),
        OWN_ASSERT,
        "own_assert",
    ),
    "forks report too": ((RUNNER, "if getpid() != self._pid:", "if False:"), FORKS, "assertion"),
}


@pytest.mark.parametrize("name", BUGS)
def test_bugs_inside_change_verdicts(name: str) -> None:
    edit, job, right = BUGS[name]
    tier = TIERS["landlock"]()
    for tried, expected in ((tier, True), (Holed(tier, edit=edit), False)):
        with Sandbox.open(tried) as sandbox:
            (verdict,) = sandbox.run([job])
        assert (verdict.outcome == right) is expected, verdict
