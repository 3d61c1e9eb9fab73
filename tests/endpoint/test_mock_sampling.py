"""The mock samples as a correct server does: its scores say why each token came."""

import asyncio
import math
from collections import Counter

import pytest

from ddtree.endpoint.calls import CompletionRequest
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_sampling import Candidates, choose, sampled_scores
from ddtree.endpoint.mock_script import (
    OTHER_LOGIT,
    TOP_LOGITS,
    MockFaults,
    MockScript,
    continuation,
)
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling

PROMPT = tuple(range(100, 160))
ARMS = (Arm("ar"), Arm("chain"), Arm("ddtree", 8, 4))
WARM = Sampling(0.7, seed=5)


def outputs(*asked: Sampling, arms: tuple[Arm, ...] = ARMS) -> list[tuple[int, ...]]:
    async def work() -> list[tuple[int, ...]]:
        async with MockServer() as server, ServerClient(server.url) as client:
            found = []
            for sampling in asked:
                for arm in arms:
                    request = CompletionRequest(PROMPT, 20, arm, sampling=sampling)
                    found.append((await client.stream_completion(request)).token_ids)
            return found

    return asyncio.run(work())


def test_a_seed_gives_the_same_tokens_with_every_arm_and_another_seed_others() -> None:
    first = outputs(WARM)
    assert len(set(first)) == 1
    other = outputs(WARM.with_seed(6))
    assert len({*first, *other, continuation(PROMPT, 20)}) == 3


def test_without_a_seed_one_is_drawn() -> None:
    assert len(set(outputs(*[Sampling(1.0)] * 3, arms=ARMS[:1]))) == 3


@pytest.mark.parametrize(
    "sampling",
    [
        WARM,
        Sampling(1.2, top_k=2, seed=1),
        Sampling(1.0, top_p=0.5, seed=2),
        Sampling(1.0, min_p=0.5, seed=3),
        Sampling(0.3, 0.9, 4, 0.05, seed=4),
    ],
)
def test_each_token_is_the_best_kept_one_by_its_scores(sampling: Sampling) -> None:
    async def work() -> None:
        script = MockScript(faults=MockFaults(corrupt={"chain": 7}))
        async with MockServer(script) as server, ServerClient(server.url) as client:
            for arm, wrong in ((Arm("ar"), set()), (Arm("chain"), {7})):
                request = CompletionRequest(PROMPT, 20, arm, sampling=sampling)
                ids = (await client.stream_completion(request)).token_ids
                scored = await client.score(PROMPT + ids, len(PROMPT), 1, sampling)
                found = [position.sampled for position in scored]
                assert len(found) == 20
                for i, (token, position) in enumerate(zip(ids, found, strict=True)):
                    assert position is not None
                    assert (token != position.top_ids[0]) is (i in wrong)
                    best = list(position.top_scores)
                    assert best == sorted(best, reverse=True)
                    assert min(position.top_edges) > 0
                    if i not in wrong:
                        assert (position.score, position.edge > 0) == (best[0], True)
                        assert 0 <= position.before < position.before + position.share <= 1.0001
                    else:
                        assert position.share == 0
                        assert position.score < best[-1] or position.edge < 0

    asyncio.run(work())


def test_plain_scoring_has_no_sampled_form_and_a_sampled_one_needs_a_seed() -> None:
    async def work() -> None:
        async with MockServer() as server, ServerClient(server.url) as client:
            (plain,) = await client.score(PROMPT, 59)
            assert plain.sampled is None
            with pytest.raises(EndpointError, match="seed: is needed above temperature 0"):
                await client.score(PROMPT, 59, 1, Sampling(0.7))

    asyncio.run(work())


# Weights at temperature 1: 1, 0.607, 0.368, 0.223, 0.135.
@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({}, 5),
        ({"top_k": 2}, 2),
        ({"top_k": 9}, 5),
        ({"top_p": 0.5}, 2),
        ({"top_p": 0.4}, 1),
        ({"top_p": 0.7, "top_k": 2}, 2),
        ({"top_p": 0.6, "top_k": 2}, 1),
        ({"min_p": 0.3}, 3),
        ({"min_p": 0.3, "top_p": 0.5}, 2),
    ],
)
def test_filters_keep_the_right_tokens(filters: dict[str, float], kept: int) -> None:
    sampling = Sampling(1.0, seed=0, **filters)  # type: ignore[arg-type]
    candidates = Candidates((11, 12, 13, 14, 15), TOP_LOGITS, 60)
    entries = [
        sampled_scores(candidates, token, OTHER_LOGIT, sampling) for token in (11, 12, 13, 14, 15)
    ]
    assert [entry["edges"] > 0 for entry in entries] == [True] * kept + [False] * (5 - kept)
    assert {frozenset(entry["best_ids"]) for entry in entries} == {frozenset(range(11, 11 + kept))}
    shares = [entry["share"] for entry in entries]
    assert sum(shares) == pytest.approx(1)
    assert [e["before"] for e in entries] == pytest.approx([sum(shares[:i]) for i in range(5)])
    other = sampled_scores(candidates, 99, OTHER_LOGIT, sampling)
    assert (other["share"], other["before"]) == (0, pytest.approx(1))
    assert (other["edges"] > 0) is (not filters)


def test_tokens_come_as_often_as_their_shares_say() -> None:
    candidates = Candidates((11, 12, 13, 14, 15), TOP_LOGITS, 60)
    count = 4000
    drawn = Counter(choose(candidates, Sampling(0.7, seed=seed)) for seed in range(count))
    for token in candidates.token_ids:
        share = sampled_scores(candidates, token, OTHER_LOGIT, WARM)["share"]
        # Five standard deviations of a fixed set of seeds.
        spread = math.sqrt(share * (1 - share) / count)
        assert drawn[token] / count == pytest.approx(share, abs=5 * spread)
