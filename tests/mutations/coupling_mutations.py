"""Bugs planted in drafting that looks at the noise.

Those that leave the coefficients and the noise wrong change no output, only which nodes a tree
holds, so decoding can't see them.
"""

from core import coupling_checks as core
from engine import coupling_checks as engine
from mutations.planting import Mutation

COUPLING, DRAFTING, LOOP = "ddtree.core.coupling", "ddtree.engine.drafting", "ddtree.engine.loop"

COUPLING_MUTATIONS = (
    Mutation(
        "noise of the position before",
        COUPLING,
        (("torch.arange(1, log_q.shape[1] + 1,", "torch.arange(0, log_q.shape[1],"),),
        (core.check_twin, core.check_draws, engine.check_draws_are_drafted),
        harmless_to=engine.check_outputs,
    ),
    Mutation(
        "all depths take the first one's noise",
        COUPLING,
        (
            (
                "(coupling.roots[:, None] + depths)[..., None]",
                "(coupling.roots[:, None] + depths[:1])[..., None]",
            ),
        ),
        (core.check_twin, core.check_draws, engine.check_draws_are_drafted),
    ),
    Mutation(
        "all requests take the first one's seed",
        COUPLING,
        (("coupling.seeds[:, None, None]", "coupling.seeds[:1, None, None]"),),
        (core.check_twin, core.check_alone, core.check_draws),
    ),
    Mutation(
        "all depths take the first one's coefficients",
        COUPLING,
        (("scores = coupling.log_q[..., None]", "scores = coupling.log_q[:, :1, None]"),),
        (core.check_twin,),
        harmless_to=core.check_draws,
    ),
    Mutation(
        "noise weighs as the drafter's logits do",
        COUPLING,
        (("coupling.noise[..., None] * noise", "coupling.log_q[..., None] * noise"),),
        (core.check_twin, core.check_plain_coefficients, core.check_draws),
    ),
    Mutation(
        "noise keyed by the place in the pool",
        COUPLING,
        (("positions, tokens).float()", "positions, torch.arange(tokens.shape[-1])).float()"),),
        (core.check_twin, core.check_draws),
    ),
    Mutation(
        "tokens beyond the pool are forgotten",
        COUPLING,
        (("total = torch.logaddexp(scores.logsumexp(-1), rest)", "total = scores.logsumexp(-1)"),),
        (core.check_twin, core.check_plain_coefficients),
        harmless_to=core.check_small_vocabulary,
    ),
    Mutation(
        "mass beyond a pool that holds all",
        COUPLING,
        ((".clamp(min=0.0)", ".clamp(min=0.01)"),),
        (core.check_small_vocabulary,),
        harmless_to=core.check_ties,
    ),
    Mutation(
        "the rest's mass to the first power",
        COUPLING,
        (("rest = coupling.log_q * missing.log()", "rest = missing.log()"),),
        (core.check_twin,),
        harmless_to=core.check_plain_coefficients,
    ),
    Mutation(
        "the pool's order breaks ties",
        COUPLING,
        (
            (
                "best = ordered_places(found, tokens, keep)",
                "best = found.sort(dim=-1, descending=True).indices[..., :keep]",
            ),
        ),
        (core.check_ties,),
        harmless_to=core.check_twin,
    ),
    Mutation(
        "the pool holds each class's first token",
        COUPLING,
        (("keys.bitwise_or_(numbers).amin(-2) & mask", "keys.amin(-2) * 0"),),
        (core.check_twin, core.check_draws),
        harmless_to=core.check_small_vocabulary,
    ),
    Mutation(
        "values that may be 0 or above",
        COUPLING,
        (
            ("(total + 1)[..., None]", "(total * 0 - 1)[..., None]"),
            ("+ 1\n", "- total[..., None] - 1\n"),
        ),
        (core.check_twin,),
        harmless_to=core.check_small_vocabulary,
    ),
    Mutation(
        "the highest id wins among equals",
        COUPLING,
        (
            ("torch.arange(rows, dtype", "torch.arange(rows - 1, -1, -1, dtype"),
            ("best.long() * size", "(rows - 1 - best.long()) * size"),
        ),
        (core.check_ties,),
        harmless_to=core.check_twin,
    ),
    Mutation(
        "broken logits are not flagged",
        COUPLING,
        (("(total.isnan() | (total == torch.inf)).any(-1)", "(total == torch.inf).any(-1)"),),
        (core.check_unusable,),
        harmless_to=core.check_twin,
    ),
    Mutation(
        "one broken row flags the batch",
        COUPLING,
        (("(total == torch.inf)).any(-1)", "(total == torch.inf)).any().expand(len(total))"),),
        (core.check_unusable,),
        harmless_to=core.check_twin,
    ),
    Mutation(
        "a token without a chance is a candidate",
        COUPLING,
        (
            (
                "return values.masked_fill(log_q == -torch.inf, -torch.inf)",
                "return values.nan_to_num()",
            ),
        ),
        (core.check_unusable,),
        harmless_to=core.check_twin,
    ),
    Mutation(
        "coupled rows land in the first rows of the batch",
        COUPLING,
        (
            (
                "index_copy(0, coupling.rows, found)",
                "index_copy(0, torch.arange(len(found)), found)",
            ),
        ),
        (core.check_twin, core.check_other_rows, engine.check_other_requests),
    ),
    Mutation(
        "logits of the first rows of the batch",
        COUPLING,
        (("logits.index_select(0, coupling.rows)", "logits[: len(coupling.rows)]"),),
        (core.check_twin,),
        harmless_to=core.check_draws,
    ),
    Mutation(
        "the root one position too far",
        DRAFTING,
        (("requests[row].root_position for", "requests[row].root_position + 1 for"),),
        (engine.check_draws_are_drafted,),
        harmless_to=engine.check_outputs,
    ),
    Mutation(
        "seeds of other requests",
        DRAFTING,
        (
            (
                "[requests[row].seed for row in chosen]",
                "[requests[row].seed for row in chosen[::-1]]",
            ),
        ),
        (engine.check_draws_are_drafted,),
        harmless_to=engine.check_outputs,
    ),
    Mutation(
        "greedy requests count as the first",
        DRAFTING,
        (("rows=torch.tensor(chosen,", "rows=torch.tensor(range(len(chosen)),"),),
        (engine.check_other_requests,),
        harmless_to=engine.check_draws_are_drafted,
    ),
    Mutation(
        "no candidate looks at the noise",
        LOOP,
        (("if coupling is None:", "if True:"),),
        (engine.check_outputs, engine.check_draws_are_drafted, engine.check_other_requests),
    ),
    *(
        Mutation(
            f"filtered by {name}, coupled all the same",
            DRAFTING,
            ((condition, "True"),),
            (engine.check_other_requests,),
            harmless_to=engine.check_draws_are_drafted,
        )
        for name, condition in (
            ("top_k", "not few"),
            ("top_p", "sampling.top_p >= LEAST_TOP_P"),
            ("min_p", "sampling.min_p == 0"),
        )
    ),
    Mutation(
        "coupling can't be switched off",
        DRAFTING,
        (("drafter.calibration if coupled else None", "drafter.calibration"),),
        (engine.check_switch,),
        harmless_to=engine.check_outputs,
    ),
)
COUPLING_CHECKS = (
    core.check_twin,
    core.check_small_vocabulary,
    core.check_other_rows,
    core.check_alone,
    core.check_plain_coefficients,
    core.check_ties,
    core.check_unusable,
    core.check_draws,
    engine.check_outputs,
    engine.check_draws_are_drafted,
    engine.check_other_requests,
    engine.check_switch,
)
