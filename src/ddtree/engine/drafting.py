"""The drafter at work: its bounded context per slot, and one draft for a batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ddtree.core import DraftVisibility
from ddtree.core.coupling import Coupling
from ddtree.engine.plan import DraftCells, DraftContext, draft_plan
from ddtree.engine.pool import KVPool
from ddtree.engine.request import Request
from ddtree.engine.sampling_params import SamplingParams
from ddtree.engine.windows import WindowsPlan
from ddtree.models.attention import AttendPlan
from ddtree.models.coupling_file import DepthWeights
from ddtree.models.drafter import Drafter
from ddtree.models.target import Target

# The strongest filters under which weights fitted without any are known to win
# (benchmarks/coupled_drafting.py; with top_p 0.8 they lose).
LEAST_TOP_P = 0.95
LEAST_TOP_K = 50


class Drafting:
    """Owns the drafter's KV: per slot a ring of `ring` committed tokens plus the block's columns.

    Memory is fixed at start and does not grow with the context. `coupled` lets candidates look at
    the noise of sampling where the drafter has a calibration for it.
    """

    def __init__(
        self, drafter: Drafter, target: Target, slots: int, ring: int, *, coupled: bool = True
    ) -> None:
        config = drafter.config
        self._calibration = drafter.calibration if coupled else None
        self.drafter, self.target, self.ring = drafter, target, ring
        self.block = config.block_size
        self.how = DraftVisibility(config.window_kind, config.causal)
        self.cells = DraftCells(self.block, ring)
        self.pool = KVPool(
            config.num_layers,
            slots * self.cells.size,
            (config.num_kv_heads, config.head_dim),
            drafter.norm.weight.dtype,
            target.device,
        )
        masks = [config.mask_token_id] * (self.block - 1)
        self.masks = torch.tensor(masks, device=target.device)

    def feed(self, requests: Sequence[Request]) -> None:
        """Project pending features into keys and values; the newest `ring` per request survive."""
        fed = [r for r in requests if r.pending is not None]
        if not fed:
            return
        rows, positions, cells = [], [], []
        for request in fed:
            pending = request.pending
            assert pending is not None  # for the type checker: filtered above
            rows.append(pending[-self.ring :])
            held = torch.arange(
                request.length - len(rows[-1]), request.length, device=pending.device
            )
            positions.append(held)
            cells.append(request.slot * self.cells.size + self.block + held % self.ring)
            request.pending = None
        features, where = torch.cat(rows)[None], torch.cat(positions)[None]
        self.pool.write_all(torch.cat(cells), self.drafter.context(features, where))

    def draft(self, requests: Sequence[Request]) -> Tensor:
        """Logits [B, D, V] for the D positions after each root."""
        self.feed(requests)
        lengths = [r.length for r in requests]
        context = DraftContext(
            [r.slot for r in requests], lengths, [r.resolved.window for r in requests]
        )
        plan = draft_plan(self.pool, self.cells, context, self.how)
        return self._logits([r.root for r in requests], lengths, plan)

    def draft_windows(self, request: Request, windows: Sequence[int]) -> Tensor:
        """Logits [n, D, V] behind one request's root, as if it had each of the windows [n]."""
        self.feed([request])
        place = request.slot, request.length
        plan = WindowsPlan(self.pool, self.cells, self.how, place, windows)
        roots, lengths = [request.root] * len(windows), [request.length] * len(windows)
        return self._logits(roots, lengths, plan)

    def _logits(self, root_ids: Sequence[int], lengths: Sequence[int], plan: AttendPlan) -> Tensor:
        roots = torch.tensor(root_ids, device=self.target.device)[:, None]
        ids = torch.cat([roots, self.masks.expand(len(roots), -1)], 1)
        offsets = torch.arange(self.block, device=ids.device)
        positions = torch.tensor(lengths, device=ids.device)[:, None] + offsets
        return self.target.head(self.drafter(self.target.embed(ids), positions, plan))

    @property
    def last_root(self) -> int:
        """The last position of a root behind which a block fits the drafter's own limit."""
        return self.drafter.config.max_positions - self.block

    def clear(self, slot: int) -> None:
        """Zero a slot, as `KVPool.clear`."""
        self.pool.clear(slot * self.cells.size, self.cells.size)

    @property
    def is_coupled(self) -> bool:
        """Whether there is a calibration to use."""
        return self._calibration is not None

    def weights_for(self, sampling: SamplingParams) -> DepthWeights | None:
        """What weighs the noise in the trees of a request; None where they don't look at it."""
        if self._calibration is None or not _draws_from_nearly_all(sampling):
            return None
        return self._calibration.at(sampling.temperature)

    def coupling(self, requests: Sequence[Request]) -> Coupling | None:
        """Of requests in the order of their logits those whose candidates look at the noise; None
        if none does."""
        chosen, found = [], []
        for row, request in enumerate(requests):
            weights = self.weights_for(request.sampling)
            if weights is not None:
                chosen.append(row)
                found.append(weights)
        if not chosen:
            return None
        device = self.target.device
        return Coupling(
            rows=torch.tensor(chosen, device=device),
            seeds=torch.tensor([requests[row].seed for row in chosen], device=device),
            roots=torch.tensor([requests[row].root_position for row in chosen], device=device),
            log_q=torch.tensor([w.log_q for w in found], device=device),
            noise=torch.tensor([w.noise for w in found], device=device),
            rest=torch.tensor([w.rest for w in found], device=device),
        )


def _draws_from_nearly_all(sampling: SamplingParams) -> bool:
    """Whether the calibration, fitted without filters, holds: the noise of a token that a filter
    removes decides nothing."""
    few = 0 < sampling.top_k < LEAST_TOP_K
    return not few and sampling.top_p >= LEAST_TOP_P and sampling.min_p == 0
