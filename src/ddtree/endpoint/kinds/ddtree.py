"""Our own server: an arm is a field of the request, tokens come as ids, rounds are reported."""

from collections.abc import Sequence
from typing import Any

from ddtree.endpoint.calls import CompletionRequest, ScoredPosition
from ddtree.endpoint.kinds.base import Call, Kind
from ddtree.endpoint.kinds.completions import CompletionsReader, stream_body, stream_path
from ddtree.endpoint.stream import StreamState
from ddtree.records.sampling import Sampling
from ddtree.records.scores import SampledScore

# Best tokens to ask for: enough for a verdict; more where a filter may hide some of them.
_TOP, _SAMPLED_TOP = 5, 20


class DDTreeDialect:
    """`ddtree serve`."""

    kind: Kind = "ddtree"
    can_tokenize = True
    cache_reset: str | None = None
    has_prefix_cache = False
    info_path = "/server_info"

    def completion(self, request: CompletionRequest) -> Call:
        """The streaming call for a request; an `arm` of None leaves the server's default."""
        body = stream_body(request) | {
            **request.sampling.to_request(),
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "return_stats": True,
            "ignore_eos": request.ignore_eos,
        }
        if request.arm is not None:
            body["speculation"] = request.arm.to_request()
        return Call(stream_path(request), body)

    def reader(self, request: CompletionRequest) -> "_DDTreeReader":
        """Reads tokens by ids alone and the `ddtree` object."""
        return _DDTreeReader(request)

    def scoring(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling | None
    ) -> Call:
        """Raw scores by one-row decoding, or `rows` positions in a pass."""
        body: dict[str, Any] = {
            "prompt": list(token_ids),
            "echo": True,
            "logprobs": _TOP if sampling is None else _SAMPLED_TOP,
            "max_tokens": 0,
            "score_from": score_from,
            "score_rows": rows,
            **({} if sampling is None else sampling.to_request()),
        }
        return Call("/v1/completions", body)

    def scores(
        self, answer: dict[str, Any], token_ids: Sequence[int], score_from: int, *, sampled: bool
    ) -> list[ScoredPosition]:
        """Logits, and what the request's sampling makes of them."""
        logprobs = answer["choices"][0]["logprobs"]
        places = range(score_from, len(token_ids))
        return [_position(logprobs, i, sampled=sampled) for i in places]

    def describe(self, info: dict[str, Any]) -> dict[str, Any]:
        """Its names are the common ones."""
        return info


class _DDTreeReader(CompletionsReader):
    def read(self, payload: dict[str, Any], at_s: float, state: StreamState) -> None:
        stats = payload.get("ddtree")
        if stats is not None and not isinstance(stats, dict):
            state.fail("protocol", f"ddtree is not an object: {str(stats)[:80]}")
            return
        super().read(payload, at_s, state)
        state.stats = stats or state.stats

    def no_ids(
        self, text: str, usage: dict[str, Any] | None, at_s: float, state: StreamState
    ) -> None:
        if text:
            state.fail("bad_stream", "chunk has text but no token_ids; tokens can't be counted")

    def account(self, tokens: int, state: StreamState) -> None:
        # It has no prefix cache and says so in its documentation rather than in each answer.
        state.cached_tokens = state.cached_tokens or 0
        if state.stats is None:
            state.fail("no_stats", "the chunk with finish_reason carries no ddtree object")
        elif "completion_tokens" not in state.stats:
            state.fail("count_mismatch", "the ddtree object states no completion_tokens")


def _position(logprobs: dict[str, Any], i: int, *, sampled: bool) -> ScoredPosition:
    return ScoredPosition(
        sampled=_sampled(logprobs, i) if sampled else None,
        token_id=int(logprobs["token_ids"][i]),
        token_logit=float(logprobs["token_logits"][i]),
        top_ids=tuple(int(t) for t in logprobs["top_ids"][i]),
        top_logits=tuple(float(z) for z in logprobs["top_logits"][i]),
    )


def _sampled(logprobs: dict[str, Any], i: int) -> SampledScore:
    return SampledScore(
        score=float(logprobs["scores"][i]),
        edge=float(logprobs["edges"][i]),
        before=float(logprobs["before"][i]),
        share=float(logprobs["share"][i]),
        top_ids=tuple(int(t) for t in logprobs["best_ids"][i]),
        top_scores=tuple(float(z) for z in logprobs["best_scores"][i]),
        top_edges=tuple(float(z) for z in logprobs["best_edges"][i]),
    )
