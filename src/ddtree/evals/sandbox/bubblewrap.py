"""The strongest tier: namespaces of its own for files, processes, network and the rest.

Variant C, for root: no user namespace; bubblewrap keeps nothing but the right to change the uid,
and the guard inside uses it. (Plain root with bubblewrap's defaults would keep every right, and
could make `/` writable again; root mapped to another uid could still write to /proc/sys.)
Variant B, for anybody: bubblewrap makes a user namespace, started under the slot's uid by root.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddtree.errors import ConfigError
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

Variant = Literal["B", "C"]

_COMMANDS = "/usr/local/bin:/usr/bin:/bin"
_WORK = "/tmp"
_PREFIX = "/opt/py"
_SHARED_MEMORY = 1 << 20
# Either folders or links into /usr.
_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True)
class Bubblewrap:
    """`command` is bubblewrap's path; `setpriv` is that of the command that changes the uid for
    variant B, None where nobody may change it."""

    command: str
    interpreter: Interpreter
    variant: Variant
    seccomp: bytes | None
    setpriv: str | None = None

    @property
    def name(self) -> TierName:
        """As people choose it."""
        return "bubblewrap"

    @property
    def label(self) -> str:
        """Variant and interpreter included."""
        return worded("bubblewrap", f"variant {self.variant}", self.seccomp, self.interpreter)

    @property
    def own_uid(self) -> bool:
        """Without root there is but one uid."""
        return self.variant == "C" or self.setpriv is not None

    @property
    def work_folder(self) -> bool:
        """Its folder is a file system of its own, with a bound."""
        return False

    def launch(self, place: Place, limits: Limits) -> Launch:
        """One run."""
        inner, home = place, environment(_WORK)
        if self.variant == "B":
            # The uid is changed before, and a user namespace counts its processes by itself.
            inner = Place(None, None)
        executable = self.interpreter.executable
        if self._bound:
            executable = _PREFIX + executable.removeprefix(self.interpreter.prefix)
            home["LD_LIBRARY_PATH"] = f"{_PREFIX}/lib"
        argv = (
            *self._start(place),
            *self._isolation(),
            *self._files(limits),
            "--",
            *python(executable),
        )
        return Launch(argv, home, "/", guard(limits, inner, self.seccomp))

    @property
    def _bound(self) -> bool:
        """Whether the interpreter lies outside of what is there anyway."""
        return not Path(self.interpreter.prefix).is_relative_to("/usr")

    def _start(self, place: Place) -> tuple[str, ...]:
        if self.variant == "C" or self.setpriv is None:
            return (self.command,)
        uid = str(place.uid)
        change = (self.setpriv, "--reuid", uid, "--regid", uid, "--clear-groups")
        return (*change, self.command)

    def _isolation(self) -> Iterator[str]:
        yield from ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts")
        yield from ("--unshare-cgroup-try", "--hostname", "sandbox")
        yield from ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
        if self.variant == "C":
            yield from ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        else:
            yield from ("--unshare-user", "--disable-userns")

    def _files(self, limits: Limits) -> Iterator[str]:
        """Read-only but for the work folder and a little shared memory. Folders are made by name:
        those that bubblewrap adds on the way are closed to other uids."""
        yield from ("--ro-bind", "/usr", "/usr")
        for name in _SYSTEM_FOLDERS:
            path = Path("/", name)
            if path.is_symlink():
                yield from ("--symlink", str(path.readlink()), str(path))
            elif path.is_dir():
                yield from ("--ro-bind", str(path), str(path))
        yield from ("--perms", "0755", "--dir", "/etc")
        yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
        if self._bound:
            yield from ("--perms", "0755", "--dir", "/opt")
            yield from ("--ro-bind", self.interpreter.prefix, _PREFIX)
        yield from ("--proc", "/proc", "--dev", "/dev")
        yield from ("--size", str(_SHARED_MEMORY), "--perms", "1777", "--tmpfs", "/dev/shm")
        yield from ("--size", str(limits.folder), "--perms", "1777", "--tmpfs", _WORK)
        yield from ("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _WORK)


def bubblewrap(variant: Variant | None = None) -> Bubblewrap:
    """The variant that fits this process: C for root, unless there is no filter of system calls.

    ConfigError where bubblewrap is not installed, or can't be started as asked.
    """
    command = shutil.which("bwrap", path=_COMMANDS)
    if command is None:
        raise ConfigError("bwrap is not installed (on Debian: apt install bubblewrap)")
    seccomp = _filter_or_none()
    root = os.geteuid() == 0
    if variant is None:
        variant = "C" if root and seccomp is not None else "B"
    if variant == "C":
        if not root or seccomp is None:
            raise ConfigError("variant C needs root, pyseccomp and libseccomp2")
        return Bubblewrap(command, this_interpreter(), "C", seccomp)
    if not root:
        return Bubblewrap(command, this_interpreter(), "B", seccomp)
    setpriv = shutil.which("setpriv", path=_COMMANDS)
    if setpriv is None:
        raise ConfigError("setpriv is not installed (on Debian: apt install util-linux)")
    return Bubblewrap(command, reachable_interpreter(), "B", seccomp, setpriv)


def _filter_or_none() -> bytes | None:
    """Variant B closes most of what the filter closes; the tier's words say that it is missing."""
    try:
        return filter_instructions()
    except ConfigError:
        return None
