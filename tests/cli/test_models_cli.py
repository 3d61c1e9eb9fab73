"""`ddtree models`: what it prints, where, and that pulling goes through the zoo."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ddtree.cli import models
from ddtree.cli.paths import cache_dir
from ddtree.errors import ModelError
from ddtree.models import zoo


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ddtree"


def test_cache_follows_xdg(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == cache
    assert not cache.exists()
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_dir() == Path.home() / ".cache" / "ddtree"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "ddtree"


def test_list_says_how_to_get_an_absent_model(cache: Path) -> None:
    result = CliRunner().invoke(models.app, ["list"])
    assert result.exit_code == 0
    assert "smollm2-135m  absent (93 MB to fetch)  Apache-2.0" in result.stdout
    assert "ddtree models pull smollm2-135m" in result.stdout
    assert not cache.exists()


def test_list_as_json(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "find_target", lambda _entry, folder: folder / "models" / "here")
    result = CliRunner().invoke(models.app, ["list", "--json"])
    (row,) = json.loads(result.stdout)
    assert (row["name"], row["present"]) == ("smollm2-135m", True)
    assert row["path"] == str(cache / "models" / "here")


def test_pull_prints_the_folder_and_keeps_progress_off_stdout(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(name: str, folder: Path, tools: zoo.FetchTools) -> Path:
        tools.notify("fetching it")
        return folder / name

    monkeypatch.setattr(zoo, "pull", pull)
    result = CliRunner().invoke(models.app, ["pull", "smollm2-135m"])
    assert result.stdout == f"{cache / 'smollm2-135m'}\n"
    assert result.stderr == "fetching it\n"


def test_pull_of_an_unknown_name_fails(cache: Path) -> None:
    result = CliRunner().invoke(models.app, ["pull", "smollm3"])
    assert isinstance(result.exception, ModelError)
    assert "expected one of smollm2-135m" in str(result.exception)


def test_app_can_be_mounted() -> None:
    app = typer.Typer()
    app.add_typer(models.app, name="models")
    result = CliRunner().invoke(app, ["models", "--help"])
    assert result.exit_code == 0
    assert "pull" in result.stdout
