"""Where a run's numbers come from: code, versions, machine, seeds. No host or user name."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import pwd
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from ddtree.records.files import write_atomic

_PACKAGES = ("ddtree", "torch", "transformers", "numpy")
_GIT_TIMEOUT_S = 10


@dataclass(frozen=True)
class GitState:
    """The checkout that the code runs from; `dirty` when tracked files differ from `revision`."""

    revision: str
    dirty: bool


@dataclass(frozen=True)
class Provenance:
    """What `provenance.json` holds. `versions` has None for a package that isn't installed.

    `usable_cpus` counts the CPUs this process may run on, `memory_bytes` the machine's memory.
    """

    created: str
    command: tuple[str, ...]
    git: GitState | None
    source_sha256: str
    versions: dict[str, str | None]
    python: str
    platform: str
    cpu: str
    physical_cores: int | None
    logical_cores: int | None
    usable_cpus: int
    memory_bytes: int
    seeds: dict[str, int]
    environment: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as for JSON."""
        return dataclasses.asdict(self)


def collect(
    command: Sequence[str], seeds: Mapping[str, int], environment: Mapping[str, str]
) -> Provenance:
    """Look at this process and machine now.

    `environment` is what the caller set for the processes it measures; it and `command` are kept
    as given, except that home folders become `~`.
    """
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(_without_home(part) for part in command),
        git=git_state(Path(__file__)),
        source_sha256=source_sha256(),
        versions={name: _version(name) for name in _PACKAGES},
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu_model(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        usable_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        seeds=dict(seeds),
        environment={name: _without_home(value) for name, value in environment.items()},
    )


def keep(path: Path, entry: dict[str, Any]) -> None:
    """Write a start's entry; where there is one, the first start's stays and this one, a
    resumption's, is added to it."""
    if path.exists():
        first = json.loads(path.read_text(encoding="utf-8"))
        first.setdefault("resumed", []).append(entry)
        entry = first
    write_atomic(path, json.dumps(entry, indent=1) + "\n")


def source_sha256() -> str:
    """sha256, in hex, over the installed package's own .py files.

    It tells two states of the code apart where no checkout does: installed copies, edits.
    """
    return folder_sha256(Path(__file__).parents[1])


def folder_sha256(folder: Path) -> str:
    """sha256, in hex, over all .py files below `folder`: sorted relative paths and contents."""
    digest = hashlib.sha256()
    named = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.py")}
    for name in sorted(named):
        content = named[name].read_bytes()
        # Lengths keep a name and its content apart.
        digest.update(f"{len(name.encode())} {name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def git_state(file: Path) -> GitState | None:
    """State of the checkout that tracks `file`; None for a file that no checkout tracks.

    A package installed into some other project's folder is not that project's revision.
    """
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    revision = _git(file.parent, "rev-parse", "HEAD")
    status = _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    if revision is None or status is None:
        return None
    return GitState(revision.strip(), bool(status.strip()))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _without_home(text: str) -> str:
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = "/"
    if home != "/":
        text = re.sub(re.escape(home) + r"(?=/|$|:)", "~", text)
    return re.sub(r"/(?:home|Users)/[^/:]+", "~", text)
