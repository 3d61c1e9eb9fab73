"""Each kind's dialect over real HTTP against a mock that knows what it sent."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from ddtree.endpoint.calls import CompletionRequest, Deadlines
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.kinds import KINDS, Kind, dialect_of
from ddtree.endpoint.kinds.counters import counter_stats
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import MockFaults, MockScript, answer, continuation, top_tokens
from ddtree.endpoint.mock_talk import MockTalk
from ddtree.endpoint.stream import ERROR_CLASSES, error_class
from ddtree.errors import ConfigError, EndpointError
from ddtree.records.arms import Arm
from ddtree.records.requests import RequestRecord
from ddtree.records.sampling import Sampling

T = TypeVar("T")
PROMPT = tuple(range(100, 160))
QUICK = Deadlines(first_token_s=5, silence_s=5, request_s=10)
CHAIN, TREE = Arm("chain"), Arm("ddtree", 8, 4)

# Every way in which a kind may tell how many tokens a chunk held.
TALKS = {
    "ddtree": MockTalk("ddtree"),
    "sglang": MockTalk("sglang", method="chain"),
    "sglang-incremental": MockTalk("sglang", method="chain", incremental=True),
    "sglang-text": MockTalk("sglang", method="chain", ids=False),
    "vllm": MockTalk("vllm", method="chain", drafts=True),
    "vllm-usage": MockTalk("vllm", method="chain", ids=False, drafts=True),
    "openai": MockTalk("openai", method="chain", role_first=True),
}
SCRIPT = MockScript(accepted={"ar": (0,), "chain": (2, 0, 1)}, first_chunk_rounds=1)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 20))


async def ask(
    talk: MockTalk, script: MockScript = SCRIPT, arm: Arm | None = CHAIN, max_tokens: int = 20
) -> tuple[RequestRecord, MockServer]:
    async with (
        MockServer(script, talk=talk) as server,
        ServerClient(server.url, "mock", QUICK, kind=talk.kind) as client,
    ):
        return await client.stream_completion(CompletionRequest(PROMPT, max_tokens, arm)), server


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_counts_rounds_and_times_are_the_mocks(talk: MockTalk) -> None:
    record, server = run(ask(talk))
    (sent,) = server.log
    truth = answer(SCRIPT, "chain", PROMPT, 20).stats
    assert record.error is None
    assert record.chunk_tokens == tuple(sent.chunk_tokens)
    assert len(record.chunk_tokens) < 20
    assert (record.prompt_tokens, record.completion_tokens) == (60, 20)
    assert record.finish_reason == "length"
    # The client saw each chunk after it was sent, and never one that was not.
    assert all(a <= b for a, b in zip(sent.chunk_times_s, record.chunk_times_s, strict=True))
    assert record.stats is not None
    if talk.kind != "openai":
        assert record.stats["rounds"] == truth["rounds"]
        assert record.stats["accepted_histogram"] == truth["accepted_histogram"]
        assert record.stats["cut_tokens"] == truth["cut_tokens"]


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("ddtree", "ids"),
        ("sglang", "ids"),
        ("sglang-incremental", "ids"),
        ("sglang-text", "usage"),
        ("vllm", "ids"),
        ("vllm-usage", "usage"),
        ("openai", "estimate"),
    ],
)
def test_a_record_says_how_its_chunks_were_counted(name: str, counted: str) -> None:
    record, _ = run(ask(TALKS[name]))
    assert record.counted == counted
    assert (record.text is None) is (counted == "ids")
    assert (record.token_ids == continuation(PROMPT, 20)) is (counted == "ids")


def test_rounds_of_a_plain_endpoint_are_an_estimate_exact_for_a_chunk_a_round() -> None:
    script = replace(SCRIPT, first_chunk_rounds=0)
    record, _ = run(ask(TALKS["openai"], script))
    truth = answer(script, "chain", PROMPT, 20).stats
    assert record.stats is not None
    assert record.stats["source"] == "estimate"
    assert record.stats["rounds"] == truth["rounds"]
    # The last round's cut can't be seen from outside.
    assert record.stats["num_accepted"] == 20 - 1 - truth["rounds"]


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
def test_a_baseline_drafts_nothing(kind: Kind) -> None:
    record, _ = run(ask(MockTalk(kind), arm=Arm("ar")))
    assert record.error is None
    assert record.stats is not None
    assert (record.stats["rounds"], record.stats["accepted_histogram"]) == (19, [19])


def test_sglang_arms_that_are_not_what_the_server_runs() -> None:
    silent, _ = run(ask(MockTalk("sglang", method="ar"), arm=TREE))
    assert silent.error is not None
    assert silent.error.startswith("no_stats: a ddtree request")
    drafting, _ = run(ask(MockTalk("sglang", method="chain"), arm=Arm("ar")))
    assert drafting.error is not None
    assert drafting.error.startswith("protocol: the baseline's server drafts")


FAULTS = [
    (MockFaults(refuse_share=1.0), "http_429"),
    (MockFaults(error_share=1.0), "in_band"),
    (MockFaults(cut_after_chunks=3), "broken_stream"),
    (MockFaults(omit_finish=True), "no_finish_reason"),
    (MockFaults(prompt_offset=1), "prompt_mismatch"),
    (MockFaults(matched_stop="NaN happened", finish_reason="stop"), "nan"),
]


@pytest.mark.parametrize(("faults", "kind"), FAULTS, ids=[f[1] for f in FAULTS])
@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_a_fault_fails_the_request_of_every_kind(
    talk: MockTalk, faults: MockFaults, kind: str
) -> None:
    record, _ = run(ask(talk, replace(SCRIPT, faults=faults)))
    assert record.error is not None
    assert error_class(record.error) == kind
    assert kind in ERROR_CLASSES or kind.startswith("http_")


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_an_aborted_request_is_no_success(talk: MockTalk) -> None:
    record, _ = run(ask(talk, replace(SCRIPT, faults=MockFaults(finish_reason="abort"))))
    assert record.error is not None
    expected = "in_band" if talk.kind == "sglang" else "no_finish_reason"
    assert error_class(record.error) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ddtree", "no_usage"),
        ("vllm-usage", "no_usage"),
        ("openai", "no_usage"),
        ("sglang", "protocol"),
    ],
)
def test_no_usage_is_no_number(name: str, kind: str) -> None:
    talk = replace(TALKS[name], chunk_usage=False)
    record, _ = run(ask(talk, replace(SCRIPT, faults=MockFaults(omit_usage=True))))
    assert record.error is not None
    assert error_class(record.error) == kind
    assert record.completion_tokens is None


@pytest.mark.parametrize("name", [name for name in TALKS if name not in ("openai", "sglang-text")])
def test_usage_that_disagrees_with_the_tokens(name: str) -> None:
    record, _ = run(ask(TALKS[name], replace(SCRIPT, faults=MockFaults(usage_offset=1))))
    assert record.error is not None
    assert error_class(record.error) == "count_mismatch"


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
def test_cached_prompts_are_told_and_gone_after_a_reset(kind: Kind) -> None:
    async def work() -> tuple[list[int | None], bool]:
        server = MockServer(SCRIPT, talk=MockTalk(kind), prefix_cache=True)
        async with server, ServerClient(server.url, kind=kind) as client:
            request = CompletionRequest(PROMPT, 4, Arm("ar"))
            told = [(await client.stream_completion(request)).cached_tokens for _ in range(2)]
            emptied = await client.reset_cache()
            told.append((await client.stream_completion(request)).cached_tokens)
            return told, emptied

    told, emptied = run(work())
    assert told == [0, 59, 0 if emptied else 59]
    assert emptied is (kind != "openai")


def test_our_server_has_no_prefix_cache() -> None:
    record, server = run(ask(MockTalk(), arm=CHAIN))
    assert record.cached_tokens == 0

    async def work() -> bool:
        async with MockServer() as ours, ServerClient(ours.url) as client:
            return await client.reset_cache()

    assert run(work())
    assert server.resets == 0


def test_a_reset_waits_for_running_requests() -> None:
    async def work() -> tuple[int, float | None]:
        script = replace(SCRIPT, prefill_s=0.3)
        server = MockServer(script, talk=MockTalk("sglang"))
        async with server, ServerClient(server.url, kind="sglang") as client:
            request = CompletionRequest(PROMPT, 2, Arm("ar"))
            running = asyncio.create_task(client.stream_completion(request))
            while not server.log:
                await asyncio.sleep(0.01)
            assert await client.reset_cache()
            ended = server.log[0].ended_s
            await running
            return server.resets, ended

    resets, ended = run(work())
    assert resets == 1
    assert ended is not None


def test_a_reset_that_the_server_lacks_is_an_error() -> None:
    async def work() -> None:
        # As vLLM is without its development routes.
        async with MockServer() as server, ServerClient(server.url, kind="vllm") as client:
            await client.reset_cache()

    with pytest.raises(EndpointError, match="VLLM_SERVER_DEV_MODE"):
        run(work())


def test_counters_before_and_after_give_the_blocks_rounds() -> None:
    async def work() -> tuple[dict[str, Any] | None, dict[str, Any] | None, Any]:
        talk = MockTalk("vllm", method="chain")
        async with (
            MockServer(SCRIPT, talk=talk) as server,
            ServerClient(server.url, kind="vllm") as client,
        ):
            request = CompletionRequest(PROMPT, 20, CHAIN)
            first = await client.read_counters()
            await client.stream_completion(request)
            second = await client.read_counters()
            await client.stream_completion(request)
            await client.stream_completion(request)
            third = await client.read_counters()
            assert first is not None
            assert second is not None
            assert third is not None
            with pytest.raises(EndpointError, match="started anew"):
                counter_stats(third, second)
            return counter_stats(second, third), counter_stats(third, third), third

    stats, nothing, _ = run(work())
    truth = answer(SCRIPT, "chain", PROMPT, 20).stats
    assert stats is not None
    assert stats["source"] == "counters"
    assert stats["rounds"] == 2 * truth["rounds"]
    assert stats["accepted_histogram"] == [2 * n for n in truth["accepted_histogram"]]
    assert stats["num_accepted"] == 2 * sum(
        a * n for a, n in enumerate(truth["accepted_histogram"])
    )
    assert nothing is None


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_scores_tokens_and_text(kind: Kind) -> None:
    async def work() -> None:
        async with (
            MockServer(talk=MockTalk(kind)) as server,
            ServerClient(server.url, "mock", QUICK, kind=kind) as client,
        ):
            ids = (*PROMPT, *continuation(PROMPT, 3), 4)
            scores = await client.score(ids, 60)
            assert [s.token_id for s in scores] == list(ids[60:])
            assert [s.top_ids[0] == s.token_id for s in scores] == [True, True, True, False]
            assert scores[3].top_ids[:5] == top_tokens(ids[:63])
            # Logits of the mock's best five are half a unit apart, and so are these.
            gaps = [scores[0].top_logits[0] - z for z in scores[0].top_logits[:5]]
            assert gaps == [0.0, 0.5, 1.0, 1.5, 2.0]
            with pytest.raises(EndpointError, match=r"T=0.7.*stay open"):
                await client.score(ids, 60, sampling=Sampling(temperature=0.7, seed=1))
            tokens = await client.tokenize("def f(x): return x")
            assert await client.detokenize(tokens) == "def f(x): return x"

    run(work())


def test_a_plain_endpoint_scores_and_tokenizes_nothing() -> None:
    async def work() -> None:
        async with (
            MockServer(talk=MockTalk("openai")) as server,
            ServerClient(server.url, kind="openai") as client,
        ):
            assert (await client.server_info())["model"] == "mock"
            with pytest.raises(EndpointError, match="can't score"):
                await client.score((1, 2), 1)
            with pytest.raises(ConfigError, match=r"tokenizer.*kind openai"):
                await client.tokenize("text")

    run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_fields_are_all_stated(kind: Kind) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=5)
    body = dict(dialect_of(kind).completion(CompletionRequest((1,), 4, None, True, sampling)).body)
    fields = body.get("sampling_params", body)
    assert (fields["temperature"], fields["top_p"]) == (0.7, 0.9)
    assert fields["ignore_eos"] is True
    assert fields["sampling_seed" if kind == "sglang" else "seed"] == 5
    if kind in ("sglang", "vllm"):
        # A model's generation_config would fill in what is left out.
        assert fields["top_k"] == (-1 if kind == "sglang" else 0)
        assert (fields["min_p"], fields["repetition_penalty"]) == (0.0, 1.0)


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
def test_sampled_outputs_depend_on_the_seed_alone(kind: Kind) -> None:
    async def work() -> list[tuple[tuple[int, ...], str | None]]:
        async with (
            MockServer(SCRIPT, talk=MockTalk(kind)) as server,
            ServerClient(server.url, kind=kind) as client,
        ):
            out = []
            for seed in (1, 1, 2):
                sampling = Sampling(temperature=1.0, seed=seed)
                request = CompletionRequest(PROMPT, 12, Arm("ar"), sampling=sampling)
                record = await client.stream_completion(request)
                out.append((record.token_ids, record.text))
            return out

    first, again, other = run(work())
    assert first == again != other


def test_a_closing_v1_is_no_part_of_the_root() -> None:
    async def work() -> RequestRecord:
        async with (
            MockServer(talk=MockTalk("openai")) as server,
            ServerClient(server.url + "/v1/", kind="openai") as client,
        ):
            return await client.stream_completion(CompletionRequest(PROMPT, 4, Arm("ar")))

    assert run(work()).error is None
