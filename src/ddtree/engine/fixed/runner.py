"""Rounds of a fixed shape, one ahead of what the host has read.

A round is started before the one before it is read: the device never waits for the host. What the
host learns one round late is only whether a request is over, and then its row of the round under
way is dropped.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.engine.drafting import Drafting
from ddtree.engine.fixed.launches import Launches, Prepared
from ddtree.engine.fixed.parts import (
    ACTIVE,
    BAD_DRAFT,
    BAD_TARGET,
    HEAD,
    NUM_ACCEPTED,
    NUM_NODES,
    STALLED,
)
from ddtree.engine.fixed.round import Kind
from ddtree.engine.fixed.state import SlotState
from ddtree.engine.loop import Outcome
from ddtree.engine.request import Request, ResolvedSpeculation
from ddtree.models.coupling_file import DepthWeights


@dataclass(frozen=True)
class _UnderWay:
    """A round that was started and not read."""

    requests: tuple[Request, ...]
    report: Tensor
    arrived: torch.cuda.Event | None
    started_s: float


class FixedRunner:
    """Starts rounds and reads them in order."""

    def __init__(self, state: SlotState, drafting: Drafting | None, launches: Launches) -> None:
        self.state, self._drafting, self.launches = state, drafting, launches
        self._known: set[Request] = set()
        self._under_way: _UnderWay | None = None
        self._read_s = 0.0
        self.stalled = False

    def advance(self, requests: Sequence[Request]) -> Outcome | None:
        """Start a round for decoding requests; the outcome of the one started before."""
        before, started = self._under_way, time.perf_counter()
        launch = self.launches.of(self._kind_of(requests), len(requests))
        self._store(requests)
        report = launch([request.slot for request in requests])
        arrived = None
        if report.device.type == "cuda":
            report = report.to("cpu", non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._under_way = _UnderWay(tuple(requests), report, arrived, started)
        return None if before is None else self._read(before)

    def drain(self) -> Outcome | None:
        """The outcome of the round under way, if there is one; the host then knows all, and may
        change what the rows of requests say."""
        self._known.clear()
        self.stalled = False
        last, self._under_way = self._under_way, None
        return None if last is None else self._read(last)

    def prepare(self, asked: Iterable[ResolvedSpeculation]) -> Prepared:
        """Make ready what greedy and plainly sampled requests with such drafts will need."""
        coupled = self._drafting is not None and self._drafting.is_coupled
        kinds = [
            Kind(one.budget, one.topk if one.budget else 1, drawn, False, drawn and coupled)
            for one in asked
            for drawn in (False, True)
        ]
        return self.launches.prepare(kinds)

    def _store(self, requests: Sequence[Request]) -> None:
        """Tell the device of requests it does not know."""
        new = [request for request in requests if request not in self._known]
        if self._drafting is not None:
            self._drafting.feed(new)
        for request in new:
            self.state.store(request, self._weights_of(request))
        self._known = set(requests)

    def _weights_of(self, request: Request) -> DepthWeights | None:
        return None if self._drafting is None else self._drafting.weights_for(request.sampling)

    def _kind_of(self, requests: Sequence[Request]) -> Kind:
        drafting = [request.resolved for request in requests if request.resolved.budget]
        rules = [request.sampling for request in requests]
        return Kind(
            budget=max((d.budget for d in drafting), default=0),
            topk=max((d.topk for d in drafting), default=1),
            sampled=any(rule.temperature > 0 for rule in rules),
            filtered=any(
                rule.temperature > 0 and (rule.top_k > 0 or rule.top_p < 1) for rule in rules
            ),
            coupled=any(self._weights_of(r) is not None for r in requests if r.resolved.budget),
        )

    def _read(self, round: _UnderWay) -> Outcome:
        """Wait for a round's report; lengths of its requests that go on move on."""
        if round.arrived is not None:
            round.arrived.synchronize()
        now = time.perf_counter()
        seconds = {"round": now - max(round.started_s, self._read_s)}
        self._read_s = now
        outcome = Outcome([], [], [], [], [], [], {}, seconds)
        for request, row in zip(round.requests, round.report.tolist(), strict=False):
            if row[STALLED]:
                self.stalled = True
            if request.finish_reason is not None or row[STALLED] or not row[ACTIVE]:
                continue
            count = row[NUM_ACCEPTED]
            tokens, ranks, places = _split(row[HEAD:])
            request.length += count + 1
            if row[BAD_DRAFT] or row[BAD_TARGET]:
                culprit = "target" if row[BAD_TARGET] else "drafter"
                outcome.faults[len(outcome.requests)] = culprit
            outcome.requests.append(request)
            outcome.tokens.append(tokens[: count + 1])
            outcome.logprobs.append([])
            outcome.ranks.append(ranks[:count])
            outcome.nodes.append(places[:count])
            outcome.num_nodes.append(row[NUM_NODES])
        return outcome


def _split(row: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Tokens, ranks and places out of a row of a report."""
    depth = (len(row) - 1) // 3
    return row[: depth + 1], row[depth + 1 : 2 * depth + 1], row[2 * depth + 1 :]


def serves(requests: Sequence[Request]) -> bool:
    """Whether such rounds do all that is asked for."""
    return all(r.edits is None and r.sampling.logprobs is None for r in requests)
