"""One round on tensors alone: what `ddtree.engine.loop` does, with nothing read by the host.

So it can be recorded once and replayed, and the host may start the next before it has read this
one. Requests that need the host within a round (edits of logits, log-probabilities) are the
ragged loop's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.core import Candidates, SamplingRules, empty_tree
from ddtree.core.coupling import coupled_candidates
from ddtree.core.sampling import sample_unread
from ddtree.core.walk import UNVISITED, widened
from ddtree.engine.fixed.drafting import FixedDrafting
from ddtree.engine.fixed.parts import Choices, FixedPlan, Grown, Parts
from ddtree.engine.fixed.reach import Reach
from ddtree.engine.fixed.state import Rows, SlotState
from ddtree.engine.plan import Decoder
from ddtree.engine.pool import KVPool


@dataclass(frozen=True)
class Kind:
    """What a round's requests ask for together; each kind is a recording of its own.

    budget: the largest, 0 where nobody drafts. topk: the largest. sampled: anyone draws. filtered:
    anyone has top_k or top_p. coupled: anyone's candidates look at the noise.
    """

    budget: int
    topk: int
    sampled: bool
    filtered: bool
    coupled: bool


@dataclass(frozen=True)
class Models:
    """Decoder, drafter and the keys of a round."""

    decoder: Decoder
    drafting: FixedDrafting | None
    pool: KVPool
    longest: int


class FixedRound:
    """A round of one kind for batches of any size.

    `parts` must build trees of `kind.budget` nodes.
    """

    def __init__(self, models: Models, state: SlotState, parts: Parts, kind: Kind) -> None:
        self.models, self.state, self.parts, self.kind = models, state, parts, kind

    @property
    def depth(self) -> int:
        """Tokens that a round accepts at most."""
        drafting = self.models.drafting
        return 0 if drafting is None or not self.kind.budget else self.tree_depth(drafting)

    def tree_depth(self, drafting: FixedDrafting) -> int:
        """The deepest node's depth."""
        return min(drafting.block - 1, self.kind.budget)

    @torch.inference_mode()
    def __call__(self, slots: Tensor) -> Tensor:
        """A round for slots [B]; its report, see `Settled`."""
        state, parts = self.state, self.parts
        rows = state.rows(parts.open(state.ints, slots))
        grown, bad_draft = self.draft(rows)
        hidden, features = self.verify(rows, grown)
        choices = self.choose(rows, self.models.decoder.head(hidden), grown)
        settled = parts.settle(state.ints, rows, grown, choices, bad_draft)
        if self.depth:
            parts.move(self.models.pool, rows["base"] + rows["length"], settled.rows)
        if features is not None and self.models.drafting is not None:
            drafting = self.models.drafting
            drafting.feed(drafting.kept(rows, settled, features))
        return settled.report

    def draft(self, rows: Rows) -> tuple[Grown, Tensor]:
        """Trees, and [B] bool where the drafter's logits could not be used."""
        drafting = self.models.drafting
        ids, positions = rows["root"][:, None], rows["length"][:, None]
        if drafting is None or not self.kind.budget:
            none = empty_tree(len(ids), ids.device)
            bits = torch.ones(len(ids), 1, 1, dtype=torch.int32, device=ids.device)
            return Grown(none, ids, positions, bits), torch.zeros_like(rows["root"])
        candidates = self._candidates(rows, drafting.logits(rows))
        bad = candidates.invalid & (rows["budget"] > 0)
        return self.parts.grow(candidates, rows), bad

    def _candidates(self, rows: Rows, logits: Tensor) -> Candidates:
        plain = self.parts.candidates(logits, self.kind.topk)
        if not self.kind.coupled:
            return plain
        found = coupled_candidates(logits, self.kind.topk, rows.coupling())
        which = rows["coupled"].bool()[:, None, None]
        return Candidates(
            torch.where(which, found.tokens, plain.tokens),
            torch.where(which, found.log_probs, plain.log_probs),
            plain.invalid,
        )

    def verify(self, rows: Rows, grown: Grown) -> tuple[Tensor, Tensor | None]:
        """The target's hidden states of all rows [B, M, E], and features where someone drafts."""
        reach = Reach(
            first=rows["base"],
            held=rows["length"],
            own=rows["base"] + rows["length"],
            positions=grown.positions,
            bits=grown.bits,
            windows=None,
            anchored=False,
            ring=0,
            columns=self.models.longest,
        )
        plan = FixedPlan(self.models.pool, reach, self.parts)
        return self.models.decoder.forward(
            grown.ids, grown.positions, plan, features=self.kind.budget > 0
        )

    def choose(self, rows: Rows, logits: Tensor, grown: Grown) -> Choices:
        """The target's tokens at all rows; unknown where drawing needs a whole row in order."""
        best = self.parts.best(logits)
        if not self.kind.sampled:
            return best
        rules = rows.rules()
        values = widened(logits).flatten(0, 1)
        by_row = rules_by_row(rules, logits.shape[1])
        positions = grown.positions.flatten() + 1
        drawn, sure = sample_unread(values, by_row, positions, filtered=self.kind.filtered)
        drawn = torch.where(sure, drawn, UNVISITED).view_as(best.tokens)
        tokens = torch.where(rules.temperatures[:, None] > 0, drawn, best.tokens)
        return Choices(tokens, best.invalid)


def rules_by_row(rules: SamplingRules, rows: int) -> SamplingRules:
    """The rules of B requests for each of their rows, [B * rows]; who takes the best token draws
    at temperature 1, to no effect."""
    temperatures = torch.where(rules.temperatures > 0, rules.temperatures, 1.0)
    return SamplingRules(
        rules.seeds.repeat_interleave(rows),
        temperatures.repeat_interleave(rows),
        rules.top_k.repeat_interleave(rows),
        rules.top_p.repeat_interleave(rows),
        rules.min_p.repeat_interleave(rows),
    )
