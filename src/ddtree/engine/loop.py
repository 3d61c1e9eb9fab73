"""One round of speculative decoding for a batch: draft, build, layout, verify, accept, commit.

`ar` and `chain` run through here as well: a request without drafts has a tree without nodes, a
chain is a tree with one candidate a depth.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ddtree.core import (
    Acceptance,
    Candidates,
    DraftTree,
    LevelwiseBuilder,
    VerifyRows,
    accept,
    causal_rows,
    empty_tree,
    layout_tree,
    top_candidates,
)
from ddtree.core.coupling import coupled_candidates
from ddtree.engine.choosing import choose, token_logprobs
from ddtree.engine.drafting import Drafting
from ddtree.engine.packing import PackedPlan, Segment
from ddtree.engine.plan import CellPlan, Decoder, Place, verify_plan
from ddtree.engine.pool import KVPool
from ddtree.engine.request import Request, TokenLogprob
from ddtree.engine.timing import Pulse, StageClock
from ddtree.models.attention import AttentionLayer
from ddtree.models.target import Target


class HasContext(Protocol):
    """Something with keys in the pool, in `room` cells from `base` on."""

    base: int
    room: int
    length: int


@dataclass(frozen=True)
class _Beating:
    """A plan that gives a sign of life at every layer."""

    plan: CellPlan
    pulse: Pulse

    @property
    def pool(self) -> KVPool:
        return self.plan.pool

    @property
    def cells(self) -> Tensor:
        return self.plan.cells

    def look(self, layer: AttentionLayer, q: Tensor) -> Tensor:
        self.pulse.beat()
        return self.plan.look(layer, q)

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pulse.beat()
        return self.plan.attend(layer, q, k, v)


@dataclass(frozen=True)
class Outcome:
    """What a round did for its requests, row by row."""

    requests: list[Request]
    tokens: list[list[int]]  # accepted tokens, then the bonus
    logprobs: list[list[TokenLogprob]]  # of its tokens; empty where not asked for
    ranks: list[list[int]]  # of its accepted nodes among their depth's candidates
    nodes: list[list[int]]  # its accepted nodes' places in best-first order
    num_nodes: list[int]  # draft nodes verified
    faults: dict[int, str]  # row -> whose logits could not be used, or "bans" that left no token
    stage_seconds: dict[str, float]


@dataclass(frozen=True)
class RoundResult(Outcome):
    """With the tensors it did it with; all have the batch's rows in the order of `requests`."""

    tree: DraftTree
    accepted: Acceptance


@dataclass(frozen=True)
class Prefilled:
    """After a pass over prompts: the hidden states [n, E] of each one's last row, and which of
    them are numbers in all their rows."""

    hidden: Tensor
    sound: list[bool]


@dataclass(frozen=True)
class FirstToken:
    """A prompt's first token, with its log-probability if asked for; `fault` as in RoundResult."""

    token: int
    logprobs: list[TokenLogprob]
    fault: str | None


class RoundLoop:
    """Runs prefill chunks and rounds over the pools; decides nothing about scheduling.

    `decoder` runs the target's passes in its place: a fast twin of it.
    """

    def __init__(
        self,
        target: Target,
        drafting: Drafting | None,
        pool: KVPool,
        clock: StageClock,
        decoder: Decoder | None = None,
    ) -> None:
        self.target, self.drafting, self.pool, self.clock = target, drafting, pool, clock
        self.decoder: Decoder = decoder or target
        self.pulse = Pulse()
        self._builders: dict[tuple[int, int], LevelwiseBuilder] = {}

    @torch.inference_mode()
    def run_round(self, requests: Sequence[Request]) -> RoundResult:
        """One round for decoding requests in order of base. Their `length` and `pending` move on;
        their outputs are the caller's to extend from the result."""
        clock = self.clock
        clock.start_round()
        with clock.stage("draft"):
            logits = self._draft(requests)
        with clock.stage("build"):
            tree, broken_drafts = self._build(requests, logits)
        with clock.stage("layout"):
            rows = self._layout(requests, tree)
        with clock.stage("verify"):
            logits, features = self._verify(requests, rows)
        with clock.stage("accept"):
            choices = choose(requests, tree, logits)
            accepted = accept(tree, rows, choices.tokens)
        with clock.stage("commit"):
            counts = accepted.num_accepted.tolist()
            self._commit(requests, accepted, counts, features)
            tokens = accepted.tokens.tolist()
            faults = dict.fromkeys(broken_drafts, "drafter")
            faults |= dict.fromkeys(_rows_of(visited(choices.barred, accepted)), "bans")
            faults |= dict.fromkeys(_rows_of(visited(choices.invalid, accepted)), "target")
        kept = [row[: count + 1] for row, count in zip(tokens, counts, strict=True)]
        return RoundResult(
            list(requests),
            kept,
            _logprobs(requests, logits, accepted, kept),
            *accepted_paths(tree, accepted, counts),
            tree.counts.tolist(),
            faults,
            clock.finish_round(),
            tree,
            accepted,
        )

    @torch.inference_mode()
    def prefill(self, chunks: Sequence[tuple[HasContext, Sequence[int]]]) -> Prefilled:
        """The next ids of several prompts in one pass."""
        segments = [Segment(context.base, context.length, len(ids)) for context, ids in chunks]
        plan = PackedPlan(self.pool, segments)
        ids = torch.tensor([[i for _, chunk in chunks for i in chunk]], device=self.target.device)
        fed = [c for c, _ in chunks if isinstance(c, Request) and c.speculates]
        hidden, features = self._forward(ids, plan.positions, plan, features=bool(fed))
        counts = [segment.count for segment in segments]
        ends = list(itertools.accumulate(counts))
        for (context, _), count, end in zip(chunks, counts, ends, strict=True):
            context.length += count
            if isinstance(context, Request) and context in fed and features is not None:
                context.pending = features[0, end - count : end]
        if self.drafting is not None and fed:
            self.drafting.feed(fed)
        last = hidden[0, torch.tensor(ends, device=hidden.device) - 1]
        parts = hidden[0].isfinite().all(-1).tolist()
        sound = [all(parts[end - n : end]) for n, end in zip(counts, ends, strict=True)]
        return Prefilled(last, sound)

    @torch.inference_mode()
    def first_tokens(self, requests: Sequence[Request], hidden: Tensor) -> list[FirstToken]:
        """The target's tokens after prompts whose last rows have hidden states [n, E]."""
        logits = self.decoder.head(hidden)[:, None]
        choices = choose(requests, empty_tree(len(requests), logits.device), logits)
        found = []
        for row, request in enumerate(requests):
            token, top = int(choices.tokens[row]), request.sampling.logprobs
            listed = [] if top is None else token_logprobs(logits[row], [token], top)
            barred, invalid = bool(choices.barred[row]), bool(choices.invalid[row])
            fault = "target" if invalid else "bans" if barred else None
            found.append(FirstToken(token, listed, fault))
        return found

    @torch.inference_mode()
    def extend(self, context: HasContext, ids: Sequence[int]) -> Tensor:
        """`read` without features: hidden [1, S, E]."""
        return self.read(context, ids, features=False)[0]

    @torch.inference_mode()
    def read(
        self, context: HasContext, ids: Sequence[int], *, features: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Append given tokens as a round appends its rows: hidden [1, S, E], and features
        [1, S, F] if asked for."""
        row = torch.tensor([ids], device=self.target.device)
        positions = context.length + torch.arange(row.shape[1], device=row.device)
        rows = causal_rows(row, positions[None])
        plan = verify_plan(self.pool, [_place(context)], [context.length], rows)
        hidden, found = self._forward(rows.ids, rows.positions, plan, features=features)
        context.length += row.shape[1]
        return hidden, found

    def _forward(
        self, ids: Tensor, positions: Tensor, plan: CellPlan, *, features: bool
    ) -> tuple[Tensor, Tensor | None]:
        beating = _Beating(plan, self.pulse)
        return self.decoder.forward(ids, positions, beating, features=features)

    def _draft(self, requests: Sequence[Request]) -> Tensor | None:
        """Drafter logits [n, D, V] of the requests that speculate, None if none does."""
        speculating = [r for r in requests if r.speculates]
        if self.drafting is None or not speculating:
            return None
        return self.drafting.draft(speculating)

    def _build(
        self, requests: Sequence[Request], logits: Tensor | None
    ) -> tuple[DraftTree, list[int]]:
        """The trees, and the rows whose drafter logits can't be used."""
        if logits is None:
            return empty_tree(len(requests), self.target.device), []
        chosen = [i for i, r in enumerate(requests) if r.speculates]
        candidates = self.candidates([requests[i] for i in chosen], logits)
        broken = [chosen[i] for i in _rows_of(candidates.invalid[:, None])]
        return self.trees(requests, candidates), broken

    def trees(self, requests: Sequence[Request], candidates: Candidates) -> DraftTree:
        """Trees of requests; `candidates` has a row for each of those that speculate, and some do,
        with the largest topk among theirs."""
        chosen = [i for i, r in enumerate(requests) if r.speculates]
        drafts = [requests[i].resolved for i in chosen]
        width, topk = max(d.budget for d in drafts), candidates.tokens.shape[2]
        device = candidates.tokens.device
        builder = self._builder(width, topk, candidates.tokens.shape[1])
        budgets = torch.tensor([d.budget for d in drafts], device=device)
        topks = torch.tensor([d.topk for d in drafts], device=device)
        tree = builder(candidates, budgets, topks)
        if len(chosen) < len(requests):
            tree = tree.place(torch.tensor(chosen, device=device), len(requests))
        return tree

    def candidates(
        self, requests: Sequence[Request], logits: Tensor, topk: int | None = None
    ) -> Candidates:
        """Candidates of drafter logits [n, D, V], one row for each request; `topk` of them, None
        for the largest that a request asks for."""
        topk = max(r.resolved.topk for r in requests) if topk is None else topk
        at_once = 1 if logits.device.type == "cpu" else None
        coupling = None if self.drafting is None else self.drafting.coupling(requests)
        if coupling is None:
            return top_candidates(logits, topk, at_once)
        return coupled_candidates(logits, topk, coupling, at_once)

    def _builder(self, width: int, topk: int, depth: int) -> LevelwiseBuilder:
        key = (width, topk)
        if key not in self._builders:
            self._builders[key] = LevelwiseBuilder(width, topk, depth, self.target.device)
        return self._builders[key]

    def _layout(self, requests: Sequence[Request], tree: DraftTree) -> VerifyRows:
        roots = torch.tensor([r.root for r in requests], device=self.target.device)
        positions = torch.tensor([r.length for r in requests], device=self.target.device)
        return layout_tree(tree, roots, positions)

    def _verify(
        self, requests: Sequence[Request], rows: VerifyRows
    ) -> tuple[Tensor, Tensor | None]:
        """Target logits [B, M, V] and features [B, M, F] of all rows."""
        places = [_place(request) for request in requests]
        plan = verify_plan(self.pool, places, [r.length for r in requests], rows)
        wanted = any(r.speculates for r in requests)
        hidden, features = self._forward(rows.ids, rows.positions, plan, features=wanted)
        return self.decoder.head(hidden), features

    def _commit(
        self,
        requests: Sequence[Request],
        accepted: Acceptance,
        counts: list[int],
        features: Tensor | None,
    ) -> None:
        """Move accepted rows' keys to the front of the new columns; keep their features.

        The root's row is among them, the bonus's is not: it has not been computed yet.
        """
        base = torch.tensor([r.base + r.length for r in requests], device=accepted.rows.device)
        columns = torch.arange(accepted.rows.shape[1], device=accepted.rows.device)
        source = base[:, None] + accepted.rows
        if accepted.rows.shape[1] > 1:
            self.pool.move(source.flatten(), (base[:, None] + columns).flatten())
        for b, (request, count) in enumerate(zip(requests, counts, strict=True)):
            request.length += count + 1
            if request.speculates and features is not None:
                request.pending = features[b, accepted.rows[b, : count + 1]]


def _place(context: HasContext) -> Place:
    return Place(context.base, context.room)


def visited(flags: Tensor, accepted: Acceptance) -> Tensor:
    """[B, A]: flags [B, M] at rows the walk visited; what it never visited changes nothing."""
    columns = torch.arange(accepted.rows.shape[1], device=accepted.rows.device)
    on_path = columns <= accepted.num_accepted[:, None]
    rows = torch.where(on_path, accepted.rows, 0)
    return flags.gather(1, rows) & on_path


def accepted_paths(
    tree: DraftTree, accepted: Acceptance, counts: Sequence[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """By request, its accepted nodes' ranks, and their places in best-first order."""
    if not tree.width:
        return [[] for _ in counts], [[] for _ in counts]
    nodes = (accepted.rows[:, 1:] - 1).clamp(min=0, max=tree.width - 1)
    ranks, places = tree.ranks.gather(1, nodes).tolist(), nodes.tolist()
    return (
        [row[:count] for row, count in zip(ranks, counts, strict=True)],
        [row[:count] for row, count in zip(places, counts, strict=True)],
    )


def _logprobs(
    requests: Sequence[Request],
    logits: Tensor,
    accepted: Acceptance,
    tokens: Sequence[Sequence[int]],
) -> list[list[TokenLogprob]]:
    """By request, log-probabilities of its new tokens at the rows that chose them."""
    found: list[list[TokenLogprob]] = [[] for _ in requests]
    for b, request in enumerate(requests):
        if request.sampling.logprobs is not None:
            rows = accepted.rows[b, : len(tokens[b])]
            found[b] = token_logprobs(logits[b, rows], tokens[b], request.sampling.logprobs)
    return found


def _rows_of(flags: Tensor) -> list[int]:
    """Batch rows with any flag set, of flags [B, n]."""
    rows: list[int] = flags.any(-1).nonzero()[:, 0].tolist()
    return rows


def synchronize_of(device: torch.device) -> Callable[[], None]:
    """What makes a clock on `device` honest; the CPU has nothing queued."""
    if device.type != "cuda":
        return lambda: None
    return functools.partial(torch.cuda.synchronize, device)
