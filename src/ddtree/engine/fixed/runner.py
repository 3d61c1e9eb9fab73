"""Rounds of a fixed shape, one ahead of what the host has read.

A round is started before the one before it is read: the device never waits for the host. What the
host learns one round late is only whether a request is over, and then its row of the round under
way is dropped.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.engine.drafting import Drafting
from ddtree.engine.fixed.parts import (
    ACTIVE,
    BAD_DRAFT,
    BAD_TARGET,
    HEAD,
    NUM_ACCEPTED,
    NUM_NODES,
    STALLED,
)
from ddtree.engine.fixed.recording import Launch, Recording, Step
from ddtree.engine.fixed.round import FixedRound, Kind
from ddtree.engine.fixed.state import SlotState
from ddtree.engine.loop import Outcome
from ddtree.engine.request import Request
from ddtree.models.coupling_file import DepthWeights

RoundOf = Callable[[Kind], FixedRound]


@dataclass(frozen=True)
class _UnderWay:
    """A round that was started and not read."""

    requests: tuple[Request, ...]
    report: Tensor
    depth: int
    arrived: torch.cuda.Event | None
    started_s: float


class FixedRunner:
    """Starts rounds and reads them in order.

    round_of: makes the round of a kind. graphs: replay CUDA graphs; else launch kernel by kernel.
    """

    def __init__(
        self, state: SlotState, drafting: Drafting | None, round_of: RoundOf, *, graphs: bool
    ) -> None:
        self.state, self._drafting, self.round_of = state, drafting, round_of
        self._memory = torch.cuda.graph_pool_handle() if graphs else None
        self._rounds: dict[Kind, FixedRound] = {}
        self._launches: dict[tuple[Kind, int], Launch] = {}
        self._known: set[Request] = set()
        self._under_way: _UnderWay | None = None
        self._read_s = 0.0
        self.stalled = False

    def advance(self, requests: Sequence[Request]) -> Outcome | None:
        """Start a round for decoding requests; the outcome of the one started before."""
        before, started = self._under_way, time.perf_counter()
        kind = self._kind_of(requests)
        bucket = bucket_of(len(requests), self.state.nobody)
        self._store(requests)
        slots = [request.slot for request in requests]
        slots += [self.state.nobody] * (bucket - len(slots))
        report = self.launch_of(kind, bucket)(torch.tensor(slots))
        arrived = None
        if report.device.type == "cuda":
            report = report.to("cpu", non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        depth = self._rounds[kind].depth
        self._under_way = _UnderWay(tuple(requests), report, depth, arrived, started)
        return None if before is None else self._read(before)

    def drain(self) -> Outcome | None:
        """The outcome of the round under way, if there is one; the host then knows all, and may
        change what the rows of requests say."""
        self._known.clear()
        self.stalled = False
        last, self._under_way = self._under_way, None
        return None if last is None else self._read(last)

    def launch_of(self, kind: Kind, bucket: int) -> Launch:
        """What starts a round of this kind for so many rows; recorded on its first use."""
        if kind not in self._rounds:
            self._rounds[kind] = self.round_of(kind)
        key = (kind, bucket)
        if key not in self._launches:
            made = self._rounds[kind]
            self._launches[key] = (
                Step(made)
                if self._memory is None
                else Recording(made, bucket, self.state.nobody, self._memory)
            )
        return self._launches[key]

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
            tokens, ranks, places = _split(row[HEAD:], round.depth)
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


def _split(row: list[int], depth: int) -> tuple[list[int], list[int], list[int]]:
    """Tokens, ranks and places out of a row of a report."""
    return row[: depth + 1], row[depth + 1 : 2 * depth + 1], row[2 * depth + 1 :]


def bucket_of(count: int, most: int) -> int:
    """The size of batch that a round for `count` requests is padded to: a power of two or one and
    a half times one, `most` at the largest."""
    power = 1 << (count - 1).bit_length()
    between = 3 * power // 4
    fitting = between if between >= count and power >= 4 else power
    return min(fitting, most)


def serves(requests: Sequence[Request]) -> bool:
    """Whether such rounds do all that is asked for."""
    return all(r.edits is None and r.sampling.logprobs is None for r in requests)
