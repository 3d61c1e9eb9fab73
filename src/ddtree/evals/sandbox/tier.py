"""What all tiers have in common: how a sandboxed interpreter is started."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ddtree.evals.sandbox.interpreter import Interpreter
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.payload import boot, sources

TierName = Literal["bubblewrap", "landlock", "plain"]

# The same hashes, and so the same order of sets, in every run.
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
}


@dataclass(frozen=True)
class Place:
    """Where one run happens: the slot's uid (None where it stays ours), the work folder on this
    machine (None where the tier makes its own), and how many processes and threads the uid has
    besides."""

    uid: int | None
    folder: str | None
    others: int = 0


@dataclass(frozen=True)
class Launch:
    """A command that starts the interpreter; `guard` are the settings of `inside.guard.apply`
    (`keep` excepted), `sources` what is sent to it."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    guard: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=sources)


class Tier(Protocol):
    """A way to keep programs from doing harm. Pickled to the processes that start them.

    `own_uid`: runs under a uid of its slot's own. `work_folder`: is given a folder for each run,
    whose size is watched.
    """

    @property
    def name(self) -> TierName: ...
    @property
    def label(self) -> str:
        """Name, variant and interpreter in words."""
        ...

    @property
    def own_uid(self) -> bool: ...
    @property
    def work_folder(self) -> bool: ...
    def launch(self, place: Place, limits: Limits) -> Launch:
        """How to start one run."""
        ...


def environment(home: str) -> dict[str, str]:
    """All that a program sees of an environment."""
    return {**_ENVIRONMENT, "HOME": home, "TMPDIR": home}


def python(executable: str) -> tuple[str, ...]:
    """The command of an interpreter that receives what it runs.

    No -I: it would have the hash seed ignored. -S: the standard library alone, the same on every
    machine, and none of a machine's own start-up files before the guard.
    """
    return (executable, "-B", "-s", "-S", "-c", boot())


def guard(
    limits: Limits,
    place: Place,
    seccomp: bytes | None,
    landlock: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Settings of `inside.guard.apply`."""
    return {
        "rlimits": limits.rlimits(place.others),
        "uid": place.uid,
        "landlock": landlock,
        "seccomp": None if seccomp is None else base64.b64encode(seccomp).decode(),
    }


def worded(name: TierName, variant: str, seccomp: bytes | None, interpreter: Interpreter) -> str:
    """A tier in words."""
    calls = "no filter of system calls" if seccomp is None else "system calls filtered"
    return f"{name} ({variant}, {calls}), Python {interpreter.version}"
