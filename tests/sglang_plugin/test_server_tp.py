"""Two ranks on this CPU: each holds half of the heads and of the vocabulary, and all build the same
trees, the ones that a single rank builds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_plugin.sglang_server import (
    FAULTY,
    ON_CPU,
    Answer,
    Pair,
    Server,
    attended,
    launch,
    serving,
    tree_flags,
)
from sglang_plugin.sglang_tiny import PROMPTS, TOKENS, WIDE, problem_of, write_tiny

pytestmark = pytest.mark.sglang

# One core a rank; without it SGLang wants a NUMA node for each.
RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def servers(tiny: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """The target alone, trees on one rank and trees on two, started side by side."""
    logs = tmp_path_factory.mktemp("ranks")
    one = {"OMP_NUM_THREADS": "1"}
    trees = tree_flags(tiny, WIDE)
    two = (*trees, "--tp-size", "2")
    started = {
        "alone": launch(tiny, 32040, logs / "alone", (), one),
        "one": launch(tiny, 32041, logs / "one", trees, WIDE.environment | one),
        "two": launch(tiny, 32042, logs / "two", two, WIDE.environment | RANKS, (ON_CPU,)),
    }
    with attended(*started.values()):
        yield started


def trees_of(answers: list[Answer]) -> list[tuple[Any, ...]]:
    """What tells of the trees that answers come from."""
    names = ("ddtree_ranks", "spec_correct_drafts_histogram", "spec_verify_ct")
    return [(answer.ids, *(answer.meta[name] for name in names)) for answer in answers]


def test_two_ranks_build_the_trees_of_one(servers: dict[str, Server]) -> None:
    one, two = (servers[name].ask_all(PROMPTS, 1, max_new_tokens=TOKENS) for name in ("one", "two"))
    assert trees_of(two) == trees_of(one)
    drafted = [
        (token, rank)
        for answer in two
        for token, rank in zip(answer.ids, answer.meta["ddtree_ranks"], strict=True)
        if rank >= 0
    ]
    # Of both slices, and of many places: this is no comparison of chains.
    assert {token < 32 for token, _ in drafted} == {True, False}
    assert len({rank for _, rank in drafted}) > WIDE.topk / 2


@pytest.mark.parametrize("at_once", [1, 4, 8])
def test_answers_of_two_ranks_are_the_targets(servers: dict[str, Server], at_once: int) -> None:
    answers = servers["two"].ask_all(PROMPTS, at_once, max_new_tokens=TOKENS)
    problem = problem_of(servers["alone"], answers)
    assert problem is None, problem


def test_a_seed_gives_the_same_tokens_on_two_ranks(servers: dict[str, Server]) -> None:
    """The first token is SGLang's own draw, from servers of the same random seed."""
    sampling: dict[str, Any] = {"temperature": 0.8, "sampling_seed": 5, "max_new_tokens": 12}
    one, two = (
        [servers[name].ask(prompt, **sampling).ids for prompt in PROMPTS] for name in ("one", "two")
    )
    assert one == two


@pytest.mark.thorough
def test_a_rank_that_takes_its_own_ids_for_all_is_seen(
    servers: dict[str, Server], tiny: Pair, tmp_path: Path
) -> None:
    flags = [*tree_flags(tiny, WIDE), "--tp-size", "2"]
    environment = WIDE.environment | RANKS | {"FAULT": "shard"}
    with serving(tiny, 32043, tmp_path / "log", flags, environment, (ON_CPU, FAULTY)) as server:
        answers = server.ask_all(PROMPTS, 1, max_new_tokens=TOKENS)
    right = servers["one"].ask_all(PROMPTS, 1, max_new_tokens=TOKENS)
    alike = [one == other for one, other in zip(trees_of(answers), trees_of(right), strict=True)]
    assert sum(alike) <= 1
