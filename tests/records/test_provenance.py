import importlib.metadata
import json
import os
import platform
import pwd
import subprocess
from pathlib import Path

import pytest

from ddtree.records import provenance
from ddtree.records.provenance import GitState, collect, folder_sha256, git_state, source_sha256


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("a = 1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_git_revision_and_dirty_flag(checkout: Path) -> None:
    code = checkout / "code.py"
    revision = git(checkout, "rev-parse", "HEAD")
    assert git_state(code) == GitState(revision, dirty=False)
    (checkout / "notes.txt").write_text("untracked files change no result\n")
    assert git_state(code) == GitState(revision, dirty=False)
    code.write_text("a = 2\n")
    assert git_state(code) == GitState(revision, dirty=True)


def test_a_file_no_checkout_tracks_has_no_revision(checkout: Path, tmp_path: Path) -> None:
    # As when the package is installed in an ignored folder of another project.
    installed = checkout / "venv" / "code.py"
    installed.parent.mkdir()
    installed.write_text("")
    assert git_state(installed) is None


def test_no_git_program_is_no_error(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert git_state(checkout / "code.py") is None


def test_collect_says_what_ran_where() -> None:
    found = collect(
        ["ddtree", "bench", "run"], {"workload": 3}, {"OMP_NUM_THREADS": "2", "X": "/tmp"}
    )
    assert found.command == ("ddtree", "bench", "run")
    assert found.seeds == {"workload": 3}
    assert found.environment == {"OMP_NUM_THREADS": "2", "X": "/tmp"}
    assert found.versions["numpy"] == importlib.metadata.version("numpy")
    assert found.python == platform.python_version()
    assert found.cpu
    assert found.usable_cpus >= 1
    assert found.memory_bytes > 2**28
    assert json.loads(json.dumps(found.to_dict()))["cpu"] == found.cpu


def test_a_missing_package_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_PACKAGES", ("no-such-package",))
    assert collect([], {}, {}).versions == {"no-such-package": None}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/jane/run", "~/run"),
        ("--out=/Users/jane", "--out=~"),
        ("/opt/a:/home/jane/b", "/opt/a:~/b"),
        ("/srv/own/x", "~/x"),
        ("/srv/owner/x", "/srv/owner/x"),
    ],
)
def test_no_user_name(text: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.struct_passwd(("own", "x", 1, 1, "", "/srv/own", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: entry)
    found = collect([text], {}, {"A": text})
    assert found.command == (kept,)
    assert found.environment == {"A": kept}


def test_no_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    named = os.uname_result(("Linux", "planted-host", "6.1", "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: named)
    monkeypatch.setattr(platform, "_uname_cache", None)
    monkeypatch.setattr(platform, "_platform_cache", {})
    assert platform.node() == "planted-host"
    text = json.dumps(collect(["ddtree"], {}, {}).to_dict())
    assert "planted-host" not in text
    monkeypatch.setattr(platform, "_uname_cache", None)
    monkeypatch.setattr(platform, "_platform_cache", {})


def test_source_hash_sees_names_and_contents_of_python_files_alone(tmp_path: Path) -> None:
    def fresh(files: dict[str, str]) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder_sha256(folder)

    files = {"a.py": "1", "sub/b.py": "2"}
    same = fresh(files)
    assert fresh(dict(reversed(files.items()))) == same
    assert fresh(files | {"notes.txt": "x", "sub/__pycache__/b.pyc": "x"}) == same
    changed = (
        {"a.py": "1", "sub/b.py": "3"},
        {"a.py": "1", "sub/c.py": "2"},
        {"a.py": "1", "b.py": "2"},
        {"a.py": "1"},
        files | {"c.py": ""},
    )
    assert len({same, *map(fresh, changed)}) == len(changed) + 1


def test_source_hash_is_the_packages_and_is_kept() -> None:
    package = Path(provenance.__file__).parents[1]
    assert package.name == "ddtree"
    assert source_sha256() == folder_sha256(package)
    assert collect((), {}, {}).to_dict()["source_sha256"] == source_sha256()
