"""Faults planted in a real server are seen by the checks of greedy answers."""

from pathlib import Path

import pytest

from sglang_plugin.sglang_judging import judged, verdict
from sglang_plugin.sglang_server import ABOVE, Pair, Server, serving, tree_flags

pytestmark = [pytest.mark.sglang, pytest.mark.model]

TOKENS = 32
FAULTY = Path(__file__).parent / "fault"
Prompts = list[list[int]]


def answers_with(fault: str | None, pair: Pair, prompts: Prompts, log: Path):
    """Greedy answers of a server with a fault."""
    environment = ABOVE.environment | ({} if fault is None else {"FAULT": fault})
    paths = () if fault is None else (FAULTY,)
    with serving(pair, 32010, log, tree_flags(pair, ABOVE), environment, paths) as server:
        return server.ask_all(prompts, 4, max_new_tokens=TOKENS)


@pytest.mark.parametrize("fault", ["mask", "positions", "moves"])
def test_a_fault_of_the_verifying_pass_is_seen(
    fault: str, ar: Server, pair: Pair, prompts: Prompts, tmp_path: Path
) -> None:
    own = judged(ar, prompts, ar.ask_all(prompts, 1, max_new_tokens=TOKENS))
    found = verdict(own, judged(ar, prompts, answers_with(fault, pair, prompts, tmp_path / "log")))
    assert found is not None
    assert "are not the target's" in found


def test_wrong_hidden_states_cost_acceptance_and_nothing_else(
    ar: Server, pair: Pair, prompts: Prompts, tmp_path: Path
) -> None:
    own = judged(ar, prompts, ar.ask_all(prompts, 1, max_new_tokens=TOKENS))
    good = answers_with(None, pair, prompts, tmp_path / "good")
    bad = answers_with("hidden", pair, prompts, tmp_path / "bad")
    assert verdict(own, judged(ar, prompts, bad)) is None
    rounds = [sum(answer.meta["spec_verify_ct"] for answer in answers) for answers in (good, bad)]
    assert rounds[1] > 1.1 * rounds[0]
