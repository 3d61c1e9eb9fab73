"""Tiers with one hole each: what a probe, or a hostile program, must find.

A module of its own, since the workers that unpickle these tiers import it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.tier import Launch, Place, Tier, TierName

RUNNER = "ddtree.evals.sandbox.inside.runner"
RESULTS = "ddtree.evals.sandbox.inside.results"
GUARD = "ddtree.evals.sandbox.inside.guard"


@dataclass(frozen=True)
class Holed:
    """`inner`, but for the hole of that name, or with other text in the sources that it sends."""

    inner: Tier
    hole: str | None = None
    edit: tuple[str, str, str] | None = None

    @property
    def name(self) -> TierName:
        return self.inner.name

    @property
    def label(self) -> str:
        return f"{self.inner.label} with a hole: {self.hole}"

    @property
    def own_uid(self) -> bool:
        return self.inner.own_uid

    @property
    def work_folder(self) -> bool:
        return self.inner.work_folder

    def launch(self, place: Place, limits: Limits) -> Launch:
        launch = self.inner.launch(place, limits)
        if self.hole is not None:
            launch = HOLES[self.hole](launch)
        if self.edit is not None:
            module, old, new = self.edit
            source = launch.sources[module]
            assert source.count(old) == 1, f"{module}: {old!r}"
            launch = replace(launch, sources={**launch.sources, module: source.replace(old, new)})
        return launch


def _without(launch: Launch, *words: str) -> Launch:
    return replace(launch, argv=tuple(word for word in launch.argv if word not in words))


def _guard(launch: Launch, **changes: Any) -> Launch:
    return replace(launch, guard={**launch.guard, **changes})


def _rlimit(launch: Launch, name: str) -> Launch:
    return _guard(launch, rlimits={**launch.guard["rlimits"], name: (-1, -1)})


def _all_files(launch: Launch) -> Launch:
    """This machine's files as they are."""
    first, end = launch.argv.index("--ro-bind"), launch.argv.index("--")
    files = ("--bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--chdir", "/")
    command = ("--", "/usr/bin/python3", *launch.argv[end + 2 :])
    return replace(launch, argv=(*launch.argv[:first], *files, *command))


HOLES: Mapping[str, Callable[[Launch], Launch]] = {
    "network": lambda launch: _guard(_without(launch, "--unshare-net"), seccomp=None),
    "files": _all_files,
    "processes": lambda launch: _without(launch, "--unshare-pid"),
    "uid": lambda launch: _guard(launch, uid=None),
    "calls": lambda launch: _guard(launch, seccomp=None),
    "landlock": lambda launch: _guard(launch, landlock=None),
    "environment": lambda launch: replace(launch, env={**launch.env, "TOKEN": "of ours"}),
    "memory": lambda launch: _rlimit(launch, "RLIMIT_AS"),
    "forks": lambda launch: _rlimit(launch, "RLIMIT_NPROC"),
    "no command": lambda launch: replace(launch, argv=("/nowhere/bwrap", *launch.argv[1:])),
    "bad option": lambda launch: replace(
        launch, argv=(launch.argv[0], "--no-such-option", *launch.argv[1:])
    ),
    "not python": lambda launch: replace(launch, argv=("/bin/true",)),
}
