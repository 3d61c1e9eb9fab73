"""Requests that end early or at the very end of the context, on a real server, harm nobody."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_plugin.sglang_judging import judged, verdict
from sglang_plugin.sglang_server import ABOVE, Pair, Server, serving, tree_flags

pytestmark = [pytest.mark.sglang, pytest.mark.model]

CONTEXT = 96
Prompts = list[list[int]]


@pytest.fixture(scope="module")
def small(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A DDTREE server of a small context and few KV slots."""
    flags = [*tree_flags(pair, ABOVE), "--context-length", str(CONTEXT)]
    log = tmp_path_factory.mktemp("small") / "log"
    with serving(pair, 32020, log, flags, ABOVE.environment) as server:
        yield server


def test_the_context_can_be_filled(small: Server, ar: Server, prompts: Prompts) -> None:
    whole = [(prompt * 20)[: CONTEXT - 30] for prompt in prompts]
    answers = small.ask_all(whole, 4, max_new_tokens=29)
    # SGLang keeps two tokens of the context to itself.
    assert {len(answer.ids) for answer in answers} == {28}
    own = judged(ar, whole, ar.ask_all(whole, 1, max_new_tokens=28))
    problem = verdict(own, judged(ar, whole, answers))
    assert problem is None, problem


def test_aborts_leave_the_others_and_give_all_back(
    small: Server, ar: Server, prompts: Prompts
) -> None:
    with ThreadPoolExecutor(3) as pool:
        kept = [pool.submit(small.ask, prompt, max_new_tokens=40) for prompt in prompts[:2]]
        gone = pool.submit(small.ask, prompts[3], {"rid": "gone"}, max_new_tokens=60)
        time.sleep(0.5)
        assert small.post("/abort_request", {"rid": "gone"})[0] == 200
        answers = [answer.result() for answer in kept]
        aborted = gone.result()
    assert aborted.meta["finish_reason"]["type"] == "abort" or aborted.status != 200
    own = judged(ar, prompts[:2], ar.ask_all(prompts[:2], 1, max_new_tokens=40))
    problem = verdict(own, judged(ar, prompts[:2], answers))
    assert problem is None, problem
    # Refused while anything runs; the server's own count of KV slots follows when it is idle.
    assert small.post("/flush_cache?timeout=10", {})[0] == 200
    time.sleep(1)
    assert small.ask(prompts[0], max_new_tokens=4).status == 200
    assert "leak" not in small.log.read_text(errors="replace")
