"""Streams of every kind byte by byte: any split gives one record, nonsense gives a failure."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.endpoint.calls import CompletionRequest
from ddtree.endpoint.kinds import Kind, dialect_of
from ddtree.endpoint.kinds.accounts import estimated_account
from ddtree.endpoint.kinds.counters import Counters, counter_stats, parse_counters
from ddtree.endpoint.kinds.counting import shares
from ddtree.endpoint.mock_script import MockAnswer, MockFaults, MockScript, answer
from ddtree.endpoint.mock_talk import CompletionEvents, GenerateEvents, MockTalk, Piece
from ddtree.endpoint.sse import SSEParser
from ddtree.endpoint.stream import StreamState, error_class
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.metrics import acceptance_length
from ddtree.records.requests import RequestRecord
from mutations.planting import Mutation, planted

PROMPT, CHAIN = (5, 6), Arm("chain")
TALKS = {
    "ddtree": MockTalk("ddtree"),
    "sglang": MockTalk("sglang", method="chain"),
    "sglang-incremental": MockTalk("sglang", method="chain", incremental=True),
    "vllm": MockTalk("vllm", method="chain", drafts=True),
    "vllm-usage": MockTalk("vllm", method="chain", ids=False),
    "openai": MockTalk("openai", method="chain", role_first=True),
}
REPLY = answer(MockScript(accepted={"chain": (2, 0, 1)}), "chain", PROMPT, 9)


def events(talk: MockTalk, reply: MockAnswer = REPLY) -> list[str]:
    """Data of the events that a mock of this kind sends; text with two-byte letters and U+2028."""
    made = (
        GenerateEvents(talk, MockFaults(), reply, 0)
        if talk.kind == "sglang"
        else CompletionEvents(talk, MockFaults(), reply, {"method": "chain"}, 0)
    )
    payloads, before = made.before(), 0
    for i, ids in enumerate(reply.chunks):
        text = "".join(f"\u2028é{token}" for token in ids)
        payloads.append(made.chunk(Piece(ids, text, before, i == len(reply.chunks) - 1)))
        before += len(ids)
    payloads += made.after()
    return [json.dumps(payload, ensure_ascii=False) for payload in payloads] + ["[DONE]"]


def wire(data: list[str], end: str = "\n") -> bytes:
    return "".join(f": ping{end}data: {event}{end}{end}" for event in data).encode()


def read(kind: Kind, chunks: list[bytes], max_tokens: int = 9, arm: Arm = CHAIN) -> RequestRecord:
    """What the client makes of these reads; each at its own second."""
    request = CompletionRequest(PROMPT, max_tokens, arm)
    state = StreamState(PROMPT, max_tokens, 0.0, dialect_of(kind).reader(request))
    parser = SSEParser()
    for second, chunk in enumerate([*chunks, b""], start=1):
        for event in parser.feed(chunk) if chunk else parser.finish():
            if not state.over:
                state.event(event, float(second))
    state.ended(99.0)
    state.check_complete()
    return state.record("c", 0, 0, "p")


def facts(record: RequestRecord) -> tuple[Any, ...]:
    return (
        record.error,
        record.chunk_tokens,
        record.token_ids,
        record.text,
        record.completion_tokens,
        record.finish_reason,
        record.stats,
        record.counted,
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", TALKS)
def test_a_split_at_any_byte_changes_nothing(name: str, end: str) -> None:
    talk = TALKS[name]
    raw = wire(events(talk), end)
    whole = facts(read(talk.kind, [raw]))
    assert whole[0] is None
    assert whole[1] == tuple(len(chunk) for chunk in REPLY.chunks)
    for cut in range(1, len(raw)):
        assert facts(read(talk.kind, [raw[:cut], raw[cut:]])) == whole


@pytest.mark.parametrize("name", TALKS)
@given(data=st.data())
def test_many_splits_change_nothing(name: str, data: st.DataObject) -> None:
    raw = wire(events(TALKS[name]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=30)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]
    assert facts(read(TALKS[name].kind, pieces)) == facts(read(TALKS[name].kind, [raw]))


@pytest.mark.parametrize("name", TALKS)
def test_done_may_be_missing_and_the_last_blank_line_too(name: str) -> None:
    data = events(TALKS[name])
    whole = facts(read(TALKS[name].kind, [wire(data)]))
    assert facts(read(TALKS[name].kind, [wire(data[:-1]).rstrip(b"\n")])) == whole


@pytest.mark.parametrize("name", TALKS)
def test_a_stream_that_stops_anywhere_is_no_success(name: str) -> None:
    talk = TALKS[name]
    data = events(talk)[:-1]
    for count in range(len(data)):
        record = read(talk.kind, [wire(data[:count])])
        # vLLM's chunks state their usage, so the closing usage repeats what is known.
        closing_only = talk.kind == "vllm" and count == len(data) - 1
        assert (record.error is None) is closing_only


KEYS = st.sampled_from(
    [
        *("choices", "text", "delta", "content", "token_ids", "finish_reason", "usage", "error"),
        *("completion_tokens", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "type"),
        *("meta_info", "output_ids", "spec_verify_ct", "spec_num_correct_drafts", "metrics"),
        *("speculative_decoding", "num_spec_steps", "ddtree", "matched", "rounds", "stop_reason"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("kind", ["ddtree", "sglang", "vllm", "openai"])
@given(payloads=st.lists(st.dictionaries(KEYS, JSON, max_size=5), max_size=4))
def test_no_payload_raises_and_none_makes_tokens_up(
    kind: Kind, payloads: list[dict[str, Any]]
) -> None:
    record = read(kind, [wire([json.dumps(payload) for payload in payloads])])
    if record.error is None:
        assert sum(record.chunk_tokens) == record.completion_tokens
        assert record.finish_reason in ("stop", "length")


def chunk(text: str = "", reason: str | None = None, **more: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": reason}], **more})


def usage(tokens: object, prompt: int = 2) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": tokens}


def generate(ids: object, total: object, reason: object = None, **meta: Any) -> str:
    told = {"prompt_tokens": 2, "completion_tokens": total, "finish_reason": reason, **meta}
    return json.dumps({"text": "", "output_ids": ids, "meta_info": told})


STOP = {"type": "stop", "matched": 7}
DRAFTS = {"spec_verify_ct": 1, "spec_num_correct_drafts": 1}


@pytest.mark.parametrize(
    ("kind", "data", "error"),
    [
        # Usage is the last one stated, never a sum.
        ("openai", [chunk("a b", usage=usage(2)), chunk(" c", "stop", usage=usage(3))], None),
        ("openai", [chunk("a b"), chunk("", "stop"), json.dumps({"usage": usage(2)})], None),
        ("openai", [chunk("a b"), chunk("", "stop", usage=usage("2"))], "no_usage"),
        ("openai", [chunk("a b"), chunk("", "stop", usage=usage(-2))], "no_usage"),
        ("openai", [chunk("a", usage=usage(3)), chunk("b", usage=usage(2))], "protocol"),
        ("openai", [chunk("", "stop"), chunk("late", usage=usage(1))], "bad_stream"),
        ("openai", [chunk("", "stop", usage=usage(3))], "count_mismatch"),
        ("openai", [chunk("a"), chunk("", "stop", usage=usage(1, prompt=3))], "prompt_mismatch"),
        ("openai", [json.dumps({"object": "error", "message": "boom"})], "in_band"),
        ("openai", [json.dumps({"error": "boom"})], "in_band"),
        ("openai", [chunk("a b"), chunk("", "content_filter", usage=usage(2))], "no_finish_reason"),
        ("sglang", [generate([1, 2], 2), generate([1, 2, 3], 3, STOP, **DRAFTS)], None),
        ("sglang", [generate([1, 2], 2), generate([3], 3, STOP, **DRAFTS)], None),
        ("sglang", [generate([1, 2], 2), generate([1, 2], 2, STOP, spec_verify_ct=1)], "protocol"),
        ("sglang", [generate([1, 2], 2), generate([9, 2, 3], 3, STOP, **DRAFTS)], "count_mismatch"),
        ("sglang", [generate([1, 2], 2), generate([3, 4], 3, STOP, **DRAFTS)], "count_mismatch"),
        ("sglang", [generate([1, 2], 2), generate([1], 1, STOP, **DRAFTS)], "protocol"),
        ("sglang", [generate(["x"], 1, STOP, **DRAFTS)], "protocol"),
        ("sglang", [generate([1], None, STOP)], "protocol"),
        ("sglang", [generate([1], 1, {"type": "abort", "message": "too long"})], "in_band"),
        ("sglang", [generate([1, 2, 3, 4], 4, STOP, **DRAFTS)], "count_mismatch"),
        ("sglang", [generate([1, 2, 3, 4], 4, STOP, num_retractions=1, **DRAFTS)], None),
    ],
)
def test_hand_made_streams(kind: Kind, data: list[str], error: str | None) -> None:
    record = read(kind, [wire(data)])
    assert (record.error and error_class(record.error)) == error


TREES = Arm("ddtree", 4, 2)
PLACES = {"ddtree_ranks": [-1, 0, 1, -1, -1, 0], "ddtree_nodes": [-1, 0, 3, -1, -1, 0]}
ROUNDS = {"spec_verify_ct": 3, "spec_num_correct_drafts": 4, "spec_num_proposed_drafts": 21}


def test_places_of_tokens_become_paths_of_rounds() -> None:
    """Whole in each chunk or by chunk; the answer was cut after a drafted token."""
    first = {key: values[:4] for key, values in PLACES.items()}
    rest = {key: values[4:] for key, values in PLACES.items()}
    ids = [1, 2, 3, 4, 5, 6]
    for data in (
        [generate(ids[:4], 4, **first), generate(ids, 6, STOP, **ROUNDS, **PLACES)],
        [generate(ids[:4], 4, **first), generate(ids[4:], 6, STOP, **ROUNDS, **rest)],
    ):
        stats = read("sglang", [wire(data)], arm=TREES).stats
        assert stats is not None
        assert stats["accepted_ranks"] == [(0, 1), (), (0,)]
        assert stats["accepted_nodes"] == [(0, 3), (), (0,)]
        # Of the arm's budget: SGLang's own count is the wider of tree and block.
        assert stats["tree_nodes"] == 12


def test_places_that_make_other_rounds_are_refused() -> None:
    data = [generate([1, 2, 3, 4, 5, 6], 6, STOP, **ROUNDS | {"spec_verify_ct": 4}, **PLACES)]
    record = read("sglang", [wire(data)], arm=TREES)
    assert error_class(record.error or "") == "count_mismatch"
    retracted = [generate([1, 2, 3, 4, 5, 6], 6, STOP, num_retractions=1, **ROUNDS, **PLACES)]
    stats = read("sglang", [wire(retracted)], arm=TREES).stats
    assert stats is not None
    assert "accepted_ranks" not in stats


def test_usage_by_chunk_counts_hidden_tokens_and_late_text() -> None:
    data = [
        chunk("", usage=usage(1)),
        chunk("a b", usage=usage(3)),
        chunk(" late", usage=usage(3)),
        chunk("", "stop", usage=usage(3)),
    ]
    record = read("vllm", [wire([event]) for event in data])
    assert record.error is None
    assert (record.chunk_tokens, record.counted, record.text) == ((1, 2), "usage", "a b late")
    assert record.chunk_times_s == (1.0, 2.0)


@given(st.lists(st.text(alphabet="ab .\n", min_size=1, max_size=12), min_size=1, max_size=20))
def test_shares_sum_to_the_total_and_leave_no_chunk_out(texts: list[str]) -> None:
    for total in (0, 1, len(texts), 3 * len(texts) + 1, 500):
        counts = shares(texts, total)
        assert sum(counts) == total
        assert min(counts) >= (1 if total >= len(texts) else 0)


def test_shares_need_text() -> None:
    with pytest.raises(ValueError, match="0 pieces"):
        shares(["", ""], 2)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20).filter(any))
def test_an_estimate_reconciles(counts: list[int]) -> None:
    stats = estimated_account(counts)
    assert stats["cut_tokens"] == 0
    assert sum(stats["accepted_histogram"]) == stats["rounds"]
    accepted = sum(a * n for a, n in enumerate(stats["accepted_histogram"]))
    assert stats["num_accepted"] == accepted
    assert stats["completion_tokens"] == sum(counts) == 1 + accepted + stats["rounds"]


def test_stats_of_every_kind_give_the_same_acceptance_length() -> None:
    records = {name: read(talk.kind, [wire(events(talk))]) for name, talk in TALKS.items()}
    lengths = {name: acceptance_length([record]) for name, record in records.items()}
    # The last round was cut at the limit, which an estimate can't see.
    assert lengths["ddtree"] == lengths["sglang"] == lengths["vllm"] == 1 + 5 / 4
    assert lengths["openai"] == 2.0
    sources = {name: (r.stats or {}).get("source", "server") for name, r in records.items()}
    assert sources["vllm-usage"] == sources["openai"] == "estimate"
    assert sources["vllm"] == sources["sglang"] == sources["ddtree"] == "server"


# What SGLang 0.5.15 sent for a baseline request of three tokens; id and clock are left out.
SGLANG_STREAM = """data: {"output_ids":[279],"meta_info":{"finish_reason":null,"prompt_tokens":8,\
"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":1,\
"cached_tokens":7,"cached_tokens_details":{"device":7,"host":0},"dp_rank":null}}

data: {"output_ids":[279,110],"meta_info":{"finish_reason":null,"prompt_tokens":8,\
"num_retractions":0,"completion_tokens":2,"cached_tokens":7,"dp_rank":null}}

data: {"output_ids":[279,110,380],"meta_info":{"finish_reason":{"type":"length","length":3},\
"prompt_tokens":8,"num_retractions":0,"completion_tokens":3,"cached_tokens":7,"dp_rank":null,\
"e2e_latency":0.03702528600115329}}

data: [DONE]

"""
SGLANG_REFUSAL = """data: {"error":{"message":"The input (1600 tokens) is longer than the model's \
context length (1024 tokens).","type":"invalid_request_error","code":400,"retryable":false}}

data: [DONE]

"""
SGLANG_SCORES = {
    "output_ids": [279],
    "meta_info": {
        "input_token_logprobs": [[None, 105, None], [-6.2383251, 106, None], [-6.25, 107, None]],
        "output_token_logprobs": [[-6.2383227, 279, None]],
        "input_top_logprobs": [
            None,
            [[-6.2383227, 403, None], [-6.2383227, 70, None]],
            [[-6.2383227, 244, None], [-6.2383227, 223, None]],
        ],
    },
}


def test_what_a_real_sglang_sends() -> None:
    request = CompletionRequest(tuple(range(100, 108)), 3, Arm("ar"))

    def record_of(raw: str) -> RequestRecord:
        state = StreamState(request.prompt, 3, 0.0, dialect_of("sglang").reader(request))
        for event in SSEParser().feed(raw.encode()):
            if not state.over:
                state.event(event, 1.0)
        state.check_complete()
        return state.record("c", 0, 0, "p")

    good = record_of(SGLANG_STREAM)
    assert good.error is None
    assert (good.token_ids, good.chunk_tokens) == ((279, 110, 380), (1, 1, 1))
    assert (good.cached_tokens, good.prompt_tokens) == (7, 8)
    refused = record_of(SGLANG_REFUSAL)
    assert (refused.error or "").startswith("in_band: The input (1600 tokens) is longer")
    scores = dialect_of("sglang").scores(SGLANG_SCORES, tuple(range(100, 108)), 6, sampled=False)
    assert [score.token_logit for score in scores] == [-6.2383251, -6.25]
    # Equal ones rank by token id.
    assert [score.top_ids for score in scores] == [(70, 403), (223, 244)]


METRICS = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0"} 10.0
vllm:spec_decode_num_drafts_total{engine="1"} 5.0
# TYPE vllm:spec_decode_num_draft_tokens counter
vllm:spec_decode_num_draft_tokens_total{engine="0"} 45.0
# TYPE vllm:spec_decode_num_accepted_tokens counter
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 12.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 8.0
"""


def test_counters_are_summed_over_engines_and_sorted_by_position() -> None:
    found = parse_counters(METRICS)
    assert found == Counters(15, 45, 12, (8, 4))
    stats = counter_stats(Counters(0, 0, 0), found)
    assert stats is not None
    assert stats["accepted_histogram"] == [7, 4, 4]
    assert parse_counters("") == Counters(0, 0, 0)
    with pytest.raises(EndpointError, match="Prometheus"):
        parse_counters('vllm:spec_decode_num_drafts{x="} y')


SUMMED = Mutation(
    name="a stream's usages are summed",
    module="ddtree.endpoint.kinds.completions",
    edits=(
        (
            "            self._told = told\n",
            "            self._told += told\n            usage['completion_tokens'] = self._told\n",
        ),
    ),
    caught_by=(),
)
CHUNK_IS_TOKEN = Mutation(
    name="a chunk counts as a token",
    module="ddtree.endpoint.kinds.counting",
    edits=(
        ("weights = [len(_PIECE.findall(text)) for text in texts]", "weights = [1] * len(texts)"),
    ),
    caught_by=(),
)


TWO_USAGES = [chunk("a b", usage=usage(2)), chunk(" c", "stop", usage=usage(3))]


@pytest.mark.parametrize(
    ("mutation", "data", "counts"),
    [
        (SUMMED, TWO_USAGES, (2, 1)),
        (CHUNK_IS_TOKEN, events(TALKS["openai"]), tuple(map(len, REPLY.chunks))),
    ],
)
def test_planted_miscounts_are_seen(
    mutation: Mutation, data: list[str], counts: tuple[int, ...]
) -> None:
    right = read("openai", [wire(data)])
    assert (right.error, right.chunk_tokens) == (None, counts)
    with planted(mutation):
        wrong = read("openai", [wire(data)])
    assert wrong.error is not None or wrong.chunk_tokens != counts
