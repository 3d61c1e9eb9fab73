"""Teacher-forced scores of given tokens: what the target would have chosen at every position."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddtree.core import LogitEdits, edge_margins, gumbel, rank
from ddtree.core.walk import widened
from ddtree.engine.choosing import SeededSampling, make_edits, make_rules
from ddtree.engine.job import Job
from ddtree.engine.loop import RoundLoop
from ddtree.errors import EngineError
from ddtree.records.scores import FAR, SampledScore

# A kept token's edge is above 0, even on the edge itself.
_ON_EDGE = 1e-30
_NO_NUMBERS = (
    "the target's logits hold NaN or infinity, or rule out every token; scores would mean nothing"
)
# Tokens that a filter dropped are listed if they are at most this far from its edge, in logits.
_NEAR_EDGE = 0.5


@dataclass(frozen=True)
class Score:
    """One scored position: the given token's raw logit and log-probability, and the best tokens
    with theirs, best first. `sampled` where sampling parameters were given.

    A token that the target rules out has the logit -FAR, below which none is given, and the
    log-probability -inf.
    """

    token_id: int
    token_logit: float
    token_logprob: float
    top_ids: tuple[int, ...]
    top_logits: tuple[float, ...]
    top_logprobs: tuple[float, ...]
    sampled: SampledScore | None = None


@dataclass(eq=False)
class ScoreJob(Job):
    """Scores `ids[first:]`, position by position, in one slot.

    The first `first` tokens are prefilled like a prompt; the rest are decoded `rows` tokens per
    pass. With rows = 1 the arithmetic is that of decoding one token at a time. With `sampling`
    the first `first` tokens count as the prompt and the rest as the output.
    """

    ids: tuple[int, ...]
    first: int
    rows: int
    top: int
    chunk: int
    sampling: SeededSampling | None = None
    stop_ids: frozenset[int] = frozenset()
    slot: int = -1
    base: int = -1
    room: int = 0
    length: int = 0
    scores: list[Score] = field(default_factory=list)
    finished: bool = False
    error: str | None = None
    _edits: LogitEdits | None = None

    @property
    def most_tokens(self) -> int:
        """Tokens it will hold, and what its widest pass may add."""
        return len(self.ids)

    def advance(self, loop: RoundLoop, allowance: int) -> None:
        """One forward pass over at most `allowance` tokens of the prefix, or over the next rows;
        `finished` is set after the last."""
        if self.length < self.first:
            size = min(self.chunk, allowance, self.first - self.length)
            part = loop.prefill([(self, self.ids[self.length : self.length + size])])
            if not all(part.sound):
                raise EngineError(_NO_NUMBERS)
            if self.length == self.first:
                self._score(loop, part.hidden[None])
        else:
            ids = self.ids[self.length : -1][: self.rows]
            self._score(loop, loop.extend(self, ids))
        self.finished = self.length >= len(self.ids) - 1

    @torch.inference_mode()
    def _score(self, loop: RoundLoop, hidden: Tensor) -> None:
        """Rows of hidden [1, S, E] predict the S tokens after those already scored."""
        raw = loop.decoder.head(hidden)[0]  # [S, V]
        logits = raw.double()
        given = self.ids[self.first + len(self.scores) :][: len(logits)]
        total = torch.logsumexp(logits, -1)
        if not bool(total.isfinite().all()):
            raise EngineError(_NO_NUMBERS)
        sampled = self._sampled(raw, given)
        best = torch.sort(logits, dim=-1, descending=True, stable=True)
        top = best.values[:, : self.top]
        top_logprobs = top - total[:, None]
        for row, token in enumerate(given):
            logit = float(logits[row, token])
            self.scores.append(
                Score(
                    token,
                    max(logit, -FAR),
                    logit - float(total[row]),
                    tuple(best.indices[row, : self.top].tolist()),
                    tuple(top[row].clamp(min=-FAR).tolist()),
                    tuple(top_logprobs[row].tolist()),
                    sampled[row],
                )
            )

    def _sampled(self, logits: Tensor, given: Sequence[int]) -> list[SampledScore | None]:
        """Sampled scores at rows of logits [S, V] that predict `given`, edits one token on each."""
        if self.sampling is None:
            return [None] * len(given)
        found: list[SampledScore | None] = []
        for row, token in enumerate(given):
            values = widened(logits[row : row + 1])
            if self.sampling.params.has_edits:
                if self._edits is None:
                    params, prompt = self.sampling.params, self.ids[: self.first]
                    edits = make_edits(params, prompt, self.stop_ids, values.shape[-1])
                    self._edits = edits.to(values.device)
                values = self._edits.apply(values)
                self._edits = self._edits.advance(torch.tensor([token], device=values.device))
            position = self.first + len(self.scores) + row
            found.append(_sampled_score(values, self.sampling, position, (token, self.top)))
        return found


def _sampled_score(
    logits: Tensor, sampling: SeededSampling, position: int, wanted: tuple[int, int]
) -> SampledScore:
    """`wanted`: the given token and how many of the best to list; logits [1, V] are edited.

    Where bans left no token nothing is listed and nothing has a share.
    """
    token, top = wanted
    if bool(logits.amax() == -torch.inf):
        return SampledScore(-FAR, -FAR, 0.0, 0.0, (), (), ())
    temperature = sampling.params.temperature
    if temperature == 0:
        order = torch.sort(logits, dim=-1, descending=True, stable=True)
        ids, scores = order.indices[0], order.values[0].double()
        edges = torch.where(scores > -torch.inf, torch.inf, -torch.inf)
        shares = torch.zeros_like(scores)
        shares[0] = 1.0
    else:
        rules = make_rules([sampling], logits)
        ranked = rank(logits, rules)
        ids = ranked.ids[0]
        place = torch.tensor([position], device=ids.device)
        noise = gumbel(rules.seeds, place, ids)
        scores = logits[0].double().gather(0, ids) + temperature * noise
        margins = temperature * edge_margins(ranked, rules)[0]
        # Without a filter all are kept, of which those that are ruled out have no probability.
        kept = ranked.kept[0] & (scores > -torch.inf)
        edges = torch.where(kept, margins.clamp(min=_ON_EDGE), margins)
        shares = ranked.scaled[0].masked_fill(~ranked.kept[0], -torch.inf).softmax(-1)
    at = int((ids == token).nonzero())
    # Only a temperature near the largest number makes a score overflow, and it must stay the best.
    scores = scores.nan_to_num(neginf=-FAR)
    edges = edges.double().nan_to_num(posinf=FAR, neginf=-FAR)
    best = _places_of_best(scores, edges, top)
    return SampledScore(
        float(scores[at]),
        float(edges[at]),
        float(shares[:at].sum()),
        float(shares[at]),
        tuple(ids[best].tolist()),
        tuple(scores[best].tolist()),
        tuple(edges[best].tolist()),
    )


def _places_of_best(scores: Tensor, edges: Tensor, top: int) -> Tensor:
    """Where the `top` best scores [V] of kept and nearly kept tokens are, best first."""
    listed = torch.where(edges > -_NEAR_EDGE, scores, -torch.inf)
    best = torch.sort(listed, descending=True, stable=True).indices[:top]
    best = best[listed[best] > -torch.inf]
    # Nearly kept tokens must not crowd out the one to be chosen.
    choice = scores.masked_fill(edges <= 0, -torch.inf).argmax()[None]
    if top and not bool((best == choice).any()):
        best = torch.cat([best[: top - 1], choice])
    return best
