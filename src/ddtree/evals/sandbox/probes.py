"""What a sandbox is tried on before it may be used: small programs that do what they must not."""

import contextlib
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from ddtree.evals.outcomes import Verdict
from ddtree.evals.sandbox import probe_programs as programs
from ddtree.evals.sandbox.job import Job
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.tier import environment
from ddtree.evals.tasks import AssertTests, CallTests

# Not /tmp: bubblewrap has one of its own, which would hide what is seen of ours.
_OUTSIDE = "/var/tmp"
_SPIN_S = 0.5
_PROBE = Limits(wall_s=20.0)
# What bubblewrap and Python add to the environment.
_ADDED = ("PWD", "LC_CTYPE", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Scene:
    """What lies outside and must stay out of reach: `secret` in `file`, a `folder` that anybody may
    write to, a `port` of this machine where somebody listens, a process `pid` with `secret` among
    its arguments."""

    secret: str
    file: Path
    folder: Path
    port: int
    pid: int

    def marked(self, mark: str) -> bool:
        """Whether a process runs that has `mark` among its arguments."""
        return any(
            mark in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
        )


@dataclass(frozen=True)
class Probe:
    """`holds` says whether the sandbox does what `name` says, given the verdict on `job`."""

    name: str
    job: Callable[[Scene], Job]
    holds: Callable[[Verdict, Scene], bool]


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    """Lay out what probes reach for."""
    secret = secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        outside = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_OUTSIDE)))
        outside.chmod(0o755)
        file, folder = outside / "secret", outside / "open"
        file.write_text(secret)
        file.chmod(0o644)
        folder.mkdir()
        folder.chmod(0o777)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        # Ends with its standard input, and so with us.
        bystander = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-S", "-c", "import sys; sys.stdin.read()", secret],
                stdin=subprocess.PIPE,
            )
        )
        yield Scene(secret, file, folder, listener.getsockname()[1], bystander.pid)


def _called(program: str, limits: Limits = _PROBE, *arguments: Any) -> Job:
    return Job(program, CallTests((arguments,), None), "probe", limits)


def _value(verdict: Verdict) -> Any:
    """The result of the program; False, which no probe likes, where it has none."""
    return verdict.values[0] if verdict.values else False


def _right(limits: Limits) -> Job:
    return Job(programs.RIGHT, AssertTests("assert probe(1) == 2\n"), "probe", limits)


PROBES = (
    Probe("right programs pass", lambda _: _right(_PROBE), lambda verdict, _: verdict.passed),
    Probe(
        "wrong programs fail",
        lambda _: replace(_right(_PROBE), tests=AssertTests("assert probe(1) == 3\n")),
        lambda verdict, _: verdict.outcome == "assertion",
    ),
    Probe(
        "files outside can't be read",
        lambda scene: _called(programs.READ, _PROBE, str(scene.file)),
        lambda verdict, scene: _value(verdict) not in (False, scene.secret),
    ),
    Probe(
        "nothing is written outside",
        lambda scene: _called(programs.WRITE, _PROBE, str(scene.folder)),
        lambda verdict, scene: bool(_value(verdict)) and not any(scene.folder.iterdir()),
    ),
    Probe(
        "no network",
        lambda scene: _called(programs.CONNECT, _PROBE, scene.port),
        lambda verdict, _: _value(verdict) not in (False, "connected"),
    ),
    Probe(
        "the kernel's settings are closed",
        lambda _: _called(programs.KERNEL, _PROBE),
        lambda verdict, _: _value(verdict) not in (False, "open"),
    ),
    Probe(
        "other processes are out of reach",
        lambda scene: _called(programs.PROCESSES, _PROBE, scene.pid, scene.secret),
        lambda verdict, _: _value(verdict) == [],
    ),
    Probe(
        "nothing of our environment",
        lambda _: _called(programs.ENVIRONMENT, _PROBE),
        lambda verdict, _: (
            bool(_value(verdict)) and {*_value(verdict)} <= {*environment(""), *_ADDED}
        ),
    ),
    Probe(
        "never root",
        lambda _: _called(programs.ROOT, _PROBE),
        lambda verdict, _: bool(_value(verdict)) and 0 not in _value(verdict),
    ),
    Probe(
        "no new namespaces",
        lambda _: _called(programs.NAMESPACE, _PROBE),
        lambda verdict, _: _value(verdict) == -1,
    ),
    Probe(
        "memory is bounded",
        lambda _: _called(programs.MEMORY, _PROBE, 2 * _PROBE.address_space),
        lambda verdict, _: verdict.outcome == "memory",
    ),
    Probe(
        "processes are bounded",
        lambda _: _called(programs.FORKS, _PROBE, _PROBE.processes + 8),
        lambda verdict, _: 0 < _value(verdict) < _PROBE.processes + 8,
    ),
    Probe(
        "time is bounded",
        lambda _: _called(programs.SPIN, replace(_PROBE, wall_s=_SPIN_S)),
        lambda verdict, _: verdict.outcome == "timeout",
    ),
    Probe(
        "nothing survives a run",
        lambda scene: _called(programs.SURVIVOR, _PROBE, f"{scene.secret}-survivor"),
        lambda verdict, scene: (
            bool(_value(verdict)) and not scene.marked(f"{scene.secret}-survivor")
        ),
    ),
)

UNCONFINED = frozenset(
    {
        "right programs pass",
        "wrong programs fail",
        "nothing of our environment",
        "memory is bounded",
        "time is bounded",
        "nothing survives a run",
    }
)
"""What holds even where a program may do whatever its uid may."""
