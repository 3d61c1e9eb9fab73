"""Servers that the tests of this folder share: starting one takes longer than asking it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_plugin.sglang_server import ABOVE, AT, BELOW, Pair, Server, Shape, serving, tree_flags

TEXTS = (
    "def fibonacci(n):\n    ",
    "The capital of France is",
    "import os\nimport sys\n\ndef main():\n",
    "Once upon a time there was a little house at the edge of the forest, and in it",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "Q: What is 2+2?\nA:",
    "The first ten numbers are 1, 2, 3, 4, 5, 6, 7, 8, 9, 10. The next ten numbers are 11, 12,",
)
_PORTS = {"below": 32001, "at": 32002, "above": 32003}


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """SmolLM2 and the shipped drafter as SGLang reads it."""
    from ddtree.cli.paths import cache_dir
    from ddtree.models import zoo
    from ddtree.sglang_plugin.drafters import write_drafter

    entry = zoo.ZOO["smollm2-135m"]
    target = zoo.find_target(entry, cache_dir())
    assert target is not None, "run `ddtree models pull smollm2-135m` first"
    drafter = tmp_path_factory.mktemp("pair") / "drafter"
    return Pair(Path(target), write_drafter(zoo.shipped_drafter(entry), drafter))


@pytest.fixture(scope="session")
def prompts(pair: Pair) -> list[list[int]]:
    """Code and prose, some longer than the window of `AT`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS]


@pytest.fixture(scope="session")
def ar(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The target without speculation."""
    with serving(pair, 32000, tmp_path_factory.mktemp("ar") / "log") as server:
        yield server


@pytest.fixture(scope="session", params=(BELOW, AT, ABOVE), ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Budgets below, at and above the drafter's block."""
    wanted: Shape = request.param
    return wanted


@pytest.fixture(scope="session")
def tree(shape: Shape, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A DDTREE server of each shape, one at a time."""
    log = tmp_path_factory.mktemp(shape.name) / "log"
    flags = tree_flags(pair, shape)
    with serving(pair, _PORTS[shape.name], log, flags, shape.environment) as server:
        yield server
