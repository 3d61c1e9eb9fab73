"""Tiers without namespaces: the interpreter is started as it is, and gives up what it can.

`landlock` leaves it a folder of its own, the system's libraries and no socket; the size of its
folder is watched from outside, since nothing bounds it. `plain` bounds resources alone: a program
reads and sends whatever its uid may, so that somebody has to ask for it.
"""

import os
from dataclasses import dataclass

from ddtree.errors import ConfigError
from ddtree.evals.sandbox.inside.guard import SCOPES_ABI, landlock_abi
from ddtree.evals.sandbox.interpreter import (
    Interpreter,
    reachable_interpreter,
    this_interpreter,
)
from ddtree.evals.sandbox.limits import Limits
from ddtree.evals.sandbox.seccomp import filter_instructions
from ddtree.evals.sandbox.tier import (
    Launch,
    Place,
    TierName,
    environment,
    guard,
    python,
    worded,
)

_READ = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# The first version that guards truncation: before, what can be written nowhere could be emptied.
_TRUNCATE_ABI = 3


@dataclass(frozen=True)
class Direct:
    """With `restricted`, Landlock and the filter; without, neither."""

    interpreter: Interpreter
    restricted: bool
    own_uid: bool
    seccomp: bytes | None = None

    @property
    def name(self) -> TierName:
        """As people choose it."""
        return "landlock" if self.restricted else "plain"

    @property
    def label(self) -> str:
        """Whose uid and interpreter included."""
        uid = "uid of its own" if self.own_uid else "this user's uid"
        return worded(self.name, uid, self.seccomp, self.interpreter)

    @property
    def work_folder(self) -> bool:
        """Nothing else makes one."""
        return True

    def launch(self, place: Place, limits: Limits) -> Launch:
        """One run."""
        folder = str(place.folder)
        files = None
        if self.restricted:
            read = (*_READ, self.interpreter.prefix)
            files = {"read": read, "devices": _DEVICES, "work": (folder,)}
        settings = guard(limits, place, self.seccomp, files)
        return Launch(python(self.interpreter.executable), environment(folder), folder, settings)


def landlock() -> Direct:
    """ConfigError where the kernel, pyseccomp or libseccomp is not up to it."""
    own_uid = os.geteuid() == 0
    # What a uid of its own does for signals and sockets, Landlock does from this version on.
    needed = _TRUNCATE_ABI if own_uid else SCOPES_ABI
    found = landlock_abi()
    if found < needed:
        raise ConfigError(
            f"the kernel's Landlock is version {found} of its interface, expected {needed} or later"
        )
    return Direct(_interpreter(own_uid), True, own_uid, filter_instructions())


def plain() -> Direct:
    """Never to be chosen without being asked for."""
    own_uid = os.geteuid() == 0
    return Direct(_interpreter(own_uid), False, own_uid)


def _interpreter(own_uid: bool) -> Interpreter:
    return reachable_interpreter() if own_uid else this_interpreter()
