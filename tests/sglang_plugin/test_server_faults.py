"""Faults planted in a real server are seen by the checks of greedy answers."""

from pathlib import Path

import pytest

from sglang_plugin.sglang_judging import Judged, judged, verdict
from sglang_plugin.sglang_server import ABOVE, FAULTY, Answer, Pair, Server, serving, tree_flags

pytestmark = [pytest.mark.sglang, pytest.mark.model]

TOKENS = 24
Prompts = list[list[int]]


def answers_with(fault: str | None, pair: Pair, prompts: Prompts, log: Path) -> list[Answer]:
    """Greedy answers of a server with a fault."""
    environment = ABOVE.environment | ({} if fault is None else {"FAULT": fault})
    paths = () if fault is None else (FAULTY,)
    with serving(pair, 32010, log, tree_flags(pair, ABOVE), environment, paths) as server:
        return server.ask_all(prompts, 4, max_new_tokens=TOKENS)


@pytest.fixture(scope="module")
def own(ar: Server, prompts: Prompts) -> Judged:
    """The target's own answers, scored as those of trees are."""
    return judged(ar, prompts, ar.ask_all(prompts, 4, max_new_tokens=TOKENS))


@pytest.mark.parametrize(
    "fault",
    [
        "mask",
        pytest.param("positions", marks=pytest.mark.thorough),
        pytest.param("moves", marks=pytest.mark.thorough),
    ],
)
def test_a_fault_of_the_verifying_pass_is_seen(
    fault: str, ar: Server, own: Judged, pair: Pair, prompts: Prompts, tmp_path: Path
) -> None:
    found = verdict(own, judged(ar, prompts, answers_with(fault, pair, prompts, tmp_path / "log")))
    assert found is not None
    assert "are not the target's" in found


@pytest.mark.thorough
def test_wrong_hidden_states_cost_acceptance_and_nothing_else(
    ar: Server, own: Judged, pair: Pair, prompts: Prompts, tmp_path: Path
) -> None:
    good = answers_with(None, pair, prompts, tmp_path / "good")
    bad = answers_with("hidden", pair, prompts, tmp_path / "bad")
    assert verdict(own, judged(ar, prompts, bad)) is None
    rounds = [sum(answer.meta["spec_verify_ct"] for answer in answers) for answers in (good, bad)]
    assert rounds[1] > 1.1 * rounds[0]
