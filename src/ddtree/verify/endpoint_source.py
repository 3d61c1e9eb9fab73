"""A served endpoint as the procedure wants it: generation and scoring over HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddtree.endpoint.calls import CompletionRequest, ScoredPosition
from ddtree.endpoint.client import ServerClient
from ddtree.errors import EndpointError
from ddtree.records.requests import RequestRecord
from ddtree.records.sampling import Sampling
from ddtree.records.scores import SampledScore
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import Position
from ddtree.verify.source import Call

# What stands behind the tokens of a text, which shows no stop token: its finish reason. No token
# has a negative id.
_ENDS = {"stop": -1, "length": -2}


@dataclass(frozen=True)
class EndpointSource:
    """Generates and scores through `client`."""

    client: ServerClient

    async def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt."""
        return await self.client.tokenize(text)

    async def generate(self, call: Call) -> Output:
        """The output of one request; EndpointError when it failed."""
        request = CompletionRequest(call.prompt, call.max_tokens, call.arm, sampling=call.sampling)
        record = await self.client.stream_completion(request)
        if record.error is not None:
            raise EndpointError(f"{self.client.url}: {call.arm.label}: {record.error}")
        if record.token_ids or record.text is None:
            return output_of(record, call)
        return _text_output(await self.client.tokenize(record.text), record, call)

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling
    ) -> tuple[Position, ...]:
        """Positions score_from.. of the text."""
        asked = None if sampling.is_plain else sampling
        scores = await self.client.score(tuple(token_ids), score_from, rows, asked)
        return tuple(map(to_position, scores))


@dataclass(frozen=True)
class PairSource:
    """Two servers of one model, of kinds whose arm is a launch: `baseline`, without a drafter, has
    `ar`'s requests and `drafting` all others."""

    baseline: EndpointSource
    drafting: EndpointSource

    async def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt."""
        return await self.baseline.encode(text)

    async def generate(self, call: Call) -> Output:
        """The output of one request; EndpointError when it failed."""
        source = self.baseline if call.arm.method == "ar" else self.drafting
        return await source.generate(call)


def _text_output(ids: tuple[int, ...], record: RequestRecord, call: Call) -> Output:
    """An output of which only the text is known, as that text's own ids and a mark of its end.

    The ids need not be those that were drawn, so their number is held against nothing.
    """
    marked = (*ids, _ENDS[record.finish_reason or "length"])
    found = output_of(record, call)
    return replace(found, token_ids=marked, finish_reason="length", max_tokens=len(marked))


def output_of(record: RequestRecord, call: Call) -> Output:
    """A finished request as the procedure compares it."""
    ranks = (record.stats or {}).get("accepted_ranks")
    return Output(
        call.prompt,
        record.token_ids,
        record.finish_reason,
        call.max_tokens,
        call.sampling,
        None if ranks is None else tuple(tuple(int(rank) for rank in path) for path in ranks),
    )


def to_position(scored: ScoredPosition) -> Position:
    """Raw scores, or those of the request's sampling where it named any; none where the server
    lists no best tokens."""
    if not scored.top_logits:
        return Position(scored.token_id, None, (), ())
    if scored.sampled is None:
        return Position(scored.token_id, scored.token_logit, scored.top_ids, scored.top_logits)
    return sampled_position(scored.token_id, scored.top_logits[0], scored.sampled)


def sampled_position(token_id: int, scale: float, sampled: SampledScore) -> Position:
    """A sampled position; `scale` is its highest raw logit."""
    return Position(
        token_id=token_id,
        token_score=sampled.score,
        top_ids=sampled.top_ids,
        top_scores=sampled.top_scores,
        token_edge=sampled.edge,
        top_edges=sampled.top_edges,
        scale=scale,
        before=sampled.before,
        share=sampled.share,
    )
