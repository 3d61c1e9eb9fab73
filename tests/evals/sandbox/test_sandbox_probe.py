"""The self-test holds for tiers as they are, and finds every hole that is planted in one."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pyseccomp
import pytest

import ddtree
from ddtree.errors import ConfigError
from ddtree.evals.outcomes import Verdict
from ddtree.evals.sandbox.bubblewrap import bubblewrap
from ddtree.evals.sandbox.direct import landlock, plain
from ddtree.evals.sandbox.interpreter import SYSTEM_PYTHON
from ddtree.evals.sandbox.probe import TIERS, choose, probe
from ddtree.evals.sandbox.probes import PROBES, UNCONFINED, Probe, scene
from ddtree.evals.sandbox.slot import UIDS
from evals.sandbox.holes import RUNNER, Holed

pytestmark = pytest.mark.sandbox

BY_NAME = {one.name: one for one in PROBES}
MAKERS = {
    "variant C": lambda: bubblewrap("C"),
    "variant B": lambda: bubblewrap("B"),
    "landlock": landlock,
}


@pytest.mark.parametrize("name", MAKERS)
def test_confined_tiers_pass_all(name: str) -> None:
    report = probe(MAKERS[name]())
    assert report.ok, report.complaint
    assert report.failed == {}
    assert report.passed == tuple(BY_NAME)
    assert f"{len(PROBES)} of {len(PROBES)} probes passed" in report.line
    assert name in report.line
    assert "Python 3." in report.line


PROBE_ALL = """
from ddtree.evals.sandbox.probe import TIERS, probe
for make in TIERS.values():
    report = probe(make())
    print(report.ok, report.line)
"""


def test_all_tiers_hold_without_root() -> None:
    """As a user who has nothing but this package, in a folder that everybody can read."""
    uid = str(UIDS[-1] + 1)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        for module in (psutil, pyseccomp):
            source = Path(str(module.__file__))
            whole = source.parent if source.name == "__init__.py" else source
            copy = shutil.copytree if whole.is_dir() else shutil.copy
            copy(whole, Path(name, whole.name))
        package = Path(ddtree.__file__).parent
        shutil.copytree(package / "evals", Path(name, "ddtree", "evals"))
        for module_name in ("__init__.py", "errors.py"):
            shutil.copy(package / module_name, Path(name, "ddtree"))
        subprocess.run(["chmod", "-R", "a+rX", name], check=True)
        command = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"]
        command += [str(SYSTEM_PYTHON), "-c", PROBE_ALL]
        done = subprocess.run(command, env={"PYTHONPATH": name}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    bubblewrap_line, landlock_line, plain_line = done.stdout.splitlines()
    every = f"{len(PROBES)} of {len(PROBES)} probes passed"
    assert bubblewrap_line.startswith("True bubblewrap (variant B, system calls filtered)")
    assert landlock_line.startswith("True landlock (this user's uid, system calls filtered)")
    assert bubblewrap_line.endswith(every)
    assert landlock_line.endswith(every)
    assert plain_line.startswith("True UNSAFE: plain")


def test_plain_keeps_what_it_promises_and_says_what_it_does_not() -> None:
    report = probe(plain())
    assert report.ok, report.complaint
    assert set(report.passed) >= UNCONFINED
    assert "files outside can't be read" in report.failed
    assert "no network" in report.failed
    assert report.line.startswith("UNSAFE: plain")
    assert "but not: " in report.line


PASSES_ALL = "report.send(_graded(job))", 'report.send(_found("passed"))'
FAILS_ALL = "report.send(_graded(job))", 'report.send(_found("assertion"))'
HOLES = [
    ("variant C", "network", ("no network", "no new namespaces")),
    ("variant C", "files", ("files outside can't be read", "nothing is written outside")),
    ("variant C", "uid", ("never root", "the kernel's settings are closed")),
    ("variant C", "processes", ("other processes are out of reach",)),
    ("variant C", "calls", ("no new namespaces",)),
    ("variant C", "environment", ("nothing of our environment",)),
    ("variant C", "memory", ("memory is bounded",)),
    ("variant C", "forks", ("processes are bounded",)),
    ("variant C", "bad option", tuple(BY_NAME)),
    ("landlock", "landlock", ("files outside can't be read", "nothing is written outside")),
    ("landlock", "calls", ("no new namespaces",)),
    ("landlock", "uid", ("never root",)),
]


@pytest.mark.parametrize(("maker", "hole", "found"), HOLES)
def test_holes_are_found(maker: str, hole: str, found: tuple[str, ...]) -> None:
    report = probe(Holed(MAKERS[maker](), hole), [BY_NAME[name] for name in found])
    assert not report.ok
    assert tuple(report.failed) == found
    assert found[0] in report.complaint


@pytest.mark.parametrize(
    ("change", "found"), [(PASSES_ALL, "wrong programs fail"), (FAILS_ALL, "right programs pass")]
)
def test_a_runner_that_always_says_the_same_is_found(change: tuple[str, str], found: str) -> None:
    report = probe(Holed(landlock(), edit=(RUNNER, *change)), [BY_NAME[found]])
    assert tuple(report.failed) == (found,)


def test_survivors_and_endless_programs_are_found() -> None:
    """Clearing away is the worker's, so that no hole of a tier shows it."""
    with scene() as laid_out:
        survives = BY_NAME["nothing survives a run"]
        passed = Verdict("passed", values=("left",))
        assert survives.holds(passed, laid_out)
        sleeps = "import sys; sys.stdin.read()"
        mark = f"{laid_out.secret}-survivor"
        with subprocess.Popen([sys.executable, "-c", sleeps, mark], stdin=subprocess.PIPE):
            assert not survives.holds(passed, laid_out)
        ends: Probe = BY_NAME["time is bounded"]
        assert not ends.holds(Verdict("passed"), laid_out)


def test_the_strongest_is_chosen() -> None:
    assert choose().tier.name == "bubblewrap"
    assert choose(only="landlock").tier.name == "landlock"


def test_a_tier_with_a_hole_is_not_chosen(monkeypatch) -> None:
    monkeypatch.setitem(TIERS, "bubblewrap", lambda: Holed(bubblewrap(), "bad option"))
    assert choose().tier.name == "landlock"


def test_without_a_sandbox_nothing_is_chosen(monkeypatch) -> None:
    def missing():
        raise ConfigError("bwrap is not installed")

    monkeypatch.setitem(TIERS, "bubblewrap", missing)
    monkeypatch.setitem(TIERS, "landlock", lambda: Holed(landlock(), "landlock"))
    with pytest.raises(ConfigError) as refused:
        choose()
    words = str(refused.value)
    assert "bubblewrap: bwrap is not installed" in words
    assert "landlock: not so: files outside can't be read" in words
    assert "--allow-unsafe-exec" in words
    assert choose(allow_unsafe=True).tier.name == "plain"


def test_plain_has_to_be_allowed() -> None:
    with pytest.raises(ConfigError, match="has to ask"):
        choose(only="plain")
