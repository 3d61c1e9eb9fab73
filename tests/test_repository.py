"""Rules about the repository itself."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import ddtree

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_stay_short(path):
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", TESTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_test_files_stay_readable(path):
    assert len(path.read_text().splitlines()) <= 500


def test_every_package_has_an_init():
    """import-linter doesn't see a folder without one."""
    for path in SOURCES:
        assert (path.parent / "__init__.py").exists(), path


def test_public_names_are_sorted_and_exist():
    for info in pkgutil.iter_modules(ddtree.__path__, "ddtree."):
        if info.name == "ddtree.__main__":
            continue
        module = importlib.import_module(info.name)
        names = getattr(module, "__all__", [])
        assert names == sorted(names), info.name
        assert all(hasattr(module, name) for name in names), info.name


def test_no_package_registry_is_named():
    """PyTorch's CPU index in README and Makefile excepted."""
    hosts = re.compile(r"py(pi|thonhosted)\.org|files\.python|registry\.npm|conda\.anaconda")
    for path in [p for p in ROOT.rglob("*") if p.suffix in {".py", ".md", ".toml", ".yaml"}]:
        if not {".venv", ".git", "runs"} & set(path.relative_to(ROOT).parts):
            assert not hosts.search(path.read_text(errors="replace").replace("|", "")), path


def test_readme_lists_every_folder():
    """The tree in README names each package and top-level folder."""
    readme = (ROOT / "README.md").read_text()
    packages = [p.name for p in (ROOT / "src/ddtree").iterdir() if (p / "__init__.py").exists()]
    for name in [*packages, "tests", "benchmarks", "docs", "scripts"]:
        assert re.search(rf"\b{name}/", readme), f"{name}/ is not in README's tree"
