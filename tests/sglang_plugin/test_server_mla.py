"""A target of latent attention (MLA) on this CPU: one KV head of latents a layer, moved as such."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_plugin.sglang_server import (
    FAULTY,
    ON_CPU,
    Pair,
    Server,
    attended,
    launch,
    serving,
    tree_flags,
)
from sglang_plugin.sglang_tiny import PROMPTS, TOKENS, WIDE, problem_of, write_latent

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_latent(tmp_path_factory.mktemp("latent"))


@pytest.fixture(scope="module")
def servers(latent: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """The target alone, and with trees, started side by side."""
    logs = tmp_path_factory.mktemp("latents")
    flags = tree_flags(latent, WIDE)
    started = {
        "alone": launch(latent, 32050, logs / "alone", (), {}, (ON_CPU,)),
        "trees": launch(latent, 32051, logs / "trees", flags, WIDE.environment, (ON_CPU,)),
    }
    with attended(*started.values()):
        yield started


def test_the_target_is_sglangs_own(servers: dict[str, Server]) -> None:
    """Where its model can't be imported, SGLang takes transformers' for it."""
    for server in servers.values():
        assert "type=DeepseekV3ForCausalLM" in server.log.read_text()


@pytest.mark.parametrize("at_once", [1, 4, 8])
def test_greedy_answers_are_the_targets(servers: dict[str, Server], at_once: int) -> None:
    answers = servers["trees"].ask_all(PROMPTS, at_once, max_new_tokens=TOKENS)
    problem = problem_of(servers["alone"], answers)
    assert problem is None, problem
    ranks = {rank for answer in answers for rank in answer.meta["ddtree_ranks"]}
    assert len(ranks) > WIDE.topk / 2


@pytest.mark.thorough
def test_latents_that_stay_where_trees_had_them_are_seen(
    servers: dict[str, Server], latent: Pair, tmp_path: Path
) -> None:
    environment = WIDE.environment | {"FAULT": "moves"}
    flags, paths = tree_flags(latent, WIDE), (ON_CPU, FAULTY)
    with serving(latent, 32052, tmp_path / "log", flags, environment, paths) as server:
        answers = server.ask_all(PROMPTS, 4, max_new_tokens=TOKENS)
    assert "are not the target's" in (problem_of(servers["alone"], answers) or "")
