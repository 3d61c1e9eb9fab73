"""Bugs planted in rounds of a fixed shape: what only shows where buffers, buckets and a host that
is one round behind meet."""

from mutations import fixed_checks as fixed
from mutations.planting import Mutation

PARTS, REACH = "ddtree.engine.fixed.torch_parts", "ddtree.engine.fixed.reach"
ROUND, RUNNER = "ddtree.engine.fixed.round", "ddtree.engine.fixed.runner"
DRAFTING, STATE = "ddtree.engine.fixed.drafting", "ddtree.engine.fixed.state"

FIXED_MUTATIONS = (
    Mutation(
        "a mask that has room for one word of rows",
        REACH,
        (
            (
                "return marks[..., :size].bool()",
                "return marks[..., :size].bool() & (torch.arange(size, device=bits.device) < WORD)",
            ),
        ),
        (fixed.check_against_ragged,),
    ),
    Mutation(
        "a fixed round moves no accepted keys",
        ROUND,
        (("if self.depth:", "if not self.depth:"),),
        (fixed.check_scripted,),
    ),
    Mutation(
        "a round writes on at the end of a request",
        PARTS,
        (("who = torch.where(active, slots, len(ints) - 1)", "who = slots"),),
        (fixed.check_ended_rows,),
    ),
    Mutation(
        "requests at their end go on",
        PARTS,
        (
            (
                "_advance(ints, rows, active & ~stalled, found)",
                "_advance(ints, rows, ~stalled, found)",
            ),
        ),
        (fixed.check_ended_rows,),
    ),
    Mutation(
        "the root stays",
        PARTS,
        (("torch.where(moves, accepted.bonus, 0)", "torch.where(moves, rows['root'], 0)"),),
        (fixed.check_scripted, fixed.check_against_ragged),
    ),
    Mutation(
        "the drafter is fed the first rows",
        PARTS,
        (
            (
                "features.gather(1, settled.rows[..., None].expand(-1, -1, features.shape[-1]))",
                "features[:, : settled.rows.shape[1]]",
            ),
        ),
        (fixed.check_against_ragged,),
    ),
    Mutation(
        "rejected rows are fed to the drafter",
        PARTS,
        (("(columns <= last) &", "(columns >= 0) &"),),
        (fixed.check_against_ragged,),
        harmless_to=fixed.check_scripted,
    ),
    Mutation(
        "the block is one position late",
        DRAFTING,
        (
            (
                'positions = rows["length"][:, None] + self._offsets',
                'positions = rows["length"][:, None] + self._offsets + 1',
            ),
        ),
        (fixed.check_against_ragged,),
    ),
    Mutation(
        "a request's row of the round under way counts after its end",
        RUNNER,
        (("if request.finish_reason is not None or", "if"),),
        (fixed.check_against_ragged,),
        error=ValueError,
    ),
    Mutation(
        "what the ragged loop did is not told to the device",
        RUNNER,
        (("self._known.clear()", "pass"),),
        (fixed.check_against_ragged,),
    ),
    Mutation(
        "a new request keeps the state of its slot's last one",
        RUNNER,
        (("for request in new:", "for request in new[:0]:"),),
        (fixed.check_against_ragged,),
    ),
    Mutation(
        "drawn as if nothing were filtered",
        ROUND,
        (("filtered=self.kind.filtered", "filtered=False"),),
        (fixed.check_against_ragged,),
    ),
    Mutation(
        "noise of the root's position for all rows",
        ROUND,
        (
            (
                "positions = grown.positions.flatten() + 1",
                'positions = (rows["length"][:, None] + 0 * grown.positions).flatten() + 1',
            ),
        ),
        (fixed.check_against_ragged,),
    ),
    Mutation(
        "a window of the ring's size for all",
        DRAFTING,
        (('windows=rows["window"],', 'windows=torch.full_like(rows["window"], cells.ring),'),),
        (fixed.check_against_ragged,),
    ),
    Mutation(
        "the budget of the widest request for all",
        PARTS,
        (
            (
                'rows["budget"], rows["topk"])',
                'rows["budget"].amax().expand(len(rows["budget"])), rows["topk"])',
            ),
        ),
        (fixed.check_against_ragged,),
    ),
)
