"""Documents that can't drift."""

import importlib.util
import re
from pathlib import Path

import pytest

from ddtree.bench.spec_file import parse_spec

ROOT = Path(__file__).parents[1]


def blocks(name, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL)


def test_made_pages_are_current():
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path, text in module.pages().items():
        assert path.read_text() == text, "run python scripts/make_docs.py"


@pytest.mark.model
def test_engine_example_runs(capsys, smollm2):
    (example,) = blocks("engine.md", "python")
    names = {}
    exec(example, names)
    assert names["tree"].finish_reason == names["plain"].finish_reason == "length"
    assert names["tree"].stats.rounds < names["plain"].stats.rounds
    assert capsys.readouterr().out


def test_example_specification_is_valid():
    (example,) = blocks("bench.md", "yaml")
    spec = parse_spec(example, "docs/bench.md")
    assert [arm.label for arm in spec.arms][-1] == "ddtree(16,4) w=full"


def test_refused_fields_are_documented():
    """Every field the server refuses, and every one it accepts and ignores, is in its page."""
    from ddtree.serve import messages
    from ddtree.serve.fields import IGNORED, NEUTRAL

    text = (ROOT / "docs" / "server.md").read_text()
    for name in {*NEUTRAL, *IGNORED, *messages.NEUTRAL}:
        assert f"`{name}`" in text, name


def test_every_key_of_a_specification_is_documented():
    from ddtree.bench.spec_file import _SpecFile

    text = (ROOT / "docs" / "bench.md").read_text()
    for name in _SpecFile.model_fields:
        assert f"`{name}`" in text or f"\n{name}:" in text or f"\n{name}: " in text, name
