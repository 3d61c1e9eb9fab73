"""What a round knows of each slot's request, on the device: one row a slot, and one for nobody.

The round itself moves lengths and roots on; the host writes a row when a request begins to decode.
"""

from dataclasses import dataclass, fields
from types import MappingProxyType

import torch
from torch import Tensor

from ddtree.core import SamplingRules
from ddtree.core.coupling import Coupling
from ddtree.engine.request import Request
from ddtree.models.coupling_file import DepthWeights


@dataclass(frozen=True)
class Rows:
    """A batch's rows of the state.

    table: [columns + 2, B] int64, the state's columns, then whose row it is and whether it decodes
    in this round: where not, everything is nobody's. A budget is 0 behind the drafter's last root.
    all_floats: [slots + 1, 3] float64, temperature, top_p, min_p of every slot. all_weights:
    [slots + 1, 3, D] float32. A batch's are taken out only where someone draws.
    """

    table: Tensor
    all_floats: Tensor
    all_weights: Tensor

    def __getitem__(self, name: str) -> Tensor:
        """[B] int64: a column by name, "slot" and "active" among them."""
        return self.table[COLUMNS[name]]

    def rules(self) -> SamplingRules:
        """How the rows' requests choose tokens."""
        temperatures, top_p, min_p = self.all_floats.index_select(0, self["slot"]).unbind(1)
        return SamplingRules(self["seed"], temperatures, self["top_k"], top_p, min_p)

    def coupling(self) -> Coupling:
        """All rows' coupling; only that of "coupled" ones means anything."""
        log_q, noise, rest = self.all_weights.index_select(0, self["slot"]).unbind(1)
        rows = torch.arange(len(log_q), device=log_q.device)
        return Coupling(rows, self["seed"], self["length"], log_q, noise, rest)


@dataclass(frozen=True)
class _Ints:
    """The columns of the table of integers, in order."""

    base: int
    length: int
    root: int
    end: int
    last_root: int
    budget: int
    topk: int
    window: int
    seed: int
    top_k: int
    coupled: int


_STORED = tuple(field.name for field in fields(_Ints))
# Rows of a batch's table by name.
COLUMNS = MappingProxyType({name: i for i, name in enumerate((*_STORED, "slot", "active"))})


class SlotState:
    """Tables of `slots` + 1 rows, the last of which is nobody's: it holds no tokens and never
    decodes, and pads batches.

    nobody_base: first cell of its run. depth: the drafter's.
    """

    def __init__(
        self, slots: int, depth: int, nobody_base: int, vocab: int, device: torch.device
    ) -> None:
        self.nobody, self._vocab, self._depth = slots, vocab, depth
        self._ints = torch.zeros(slots + 1, len(_STORED), dtype=torch.int64, device=device)
        self._floats = torch.zeros(slots + 1, 3, dtype=torch.float64, device=device)
        self._weights = torch.zeros(slots + 1, 3, depth, device=device)
        nobody = _Ints(nobody_base, 0, 0, 0, -1, 0, 1, 1, 0, vocab, 0)
        self._write(slots, nobody, (0.0, 1.0, 0.0), None)

    def store(self, request: Request, weights: DepthWeights | None) -> None:
        """Write a decoding request's row from what the host knows of it."""
        resolved, sampling = request.resolved, request.sampling
        ints = _Ints(
            base=request.base,
            length=request.length,
            root=request.root,
            end=request.most_tokens - 1,
            last_root=resolved.last_root,
            budget=resolved.budget,
            topk=resolved.topk,
            window=resolved.window,
            seed=request.seed,
            top_k=min(sampling.top_k, self._vocab) if sampling.top_k > 0 else self._vocab,
            coupled=int(weights is not None),
        )
        self._write(
            request.slot, ints, (sampling.temperature, sampling.top_p, sampling.min_p), weights
        )

    @property
    def ints(self) -> Tensor:
        """[slots + 1, columns] int64: what a round reads, and whose lengths and roots it moves."""
        return self._ints

    def rows(self, table: Tensor) -> Rows:
        """A batch's rows, its table made already."""
        return Rows(table, self._floats, self._weights)

    def _write(
        self,
        slot: int,
        ints: _Ints,
        floats: tuple[float, float, float],
        weights: DepthWeights | None,
    ) -> None:
        row = [getattr(ints, name) for name in _STORED]
        self._ints[slot] = torch.tensor(row, dtype=torch.int64)
        self._floats[slot] = torch.tensor(floats, dtype=torch.float64)
        if weights is not None:
            self._weights[slot] = torch.tensor([weights.log_q, weights.noise, weights.rest])
