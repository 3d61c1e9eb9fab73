"""Bugs planted in noise, filters, edits, the walk and what requests see of it."""

from mutations import sampling_checks as sampling
from mutations.planting import Mutation

NOISE, SAMPLING, EDITS = "ddtree.core.noise", "ddtree.core.sampling", "ddtree.core.edits"
WALK, REJECTION, MARGINS = "ddtree.core.walk", "ddtree.core.rejection", "ddtree.core.margins"
CHOOSING, LOOP = "ddtree.engine.choosing", "ddtree.engine.loop"
KEY = "key = _mix(_mix(seeds) + positions * _WEYL)"
DRAWN = "drawn = _choose(edited, rules, positions + depth + 1)"
GO_ON = "rules, positions = rules.take(further), positions[further]"

NOISE_MUTATIONS = (
    Mutation(
        "noise without the position",
        NOISE,
        ((KEY, "key = _mix(_mix(seeds) + 0 * positions)"),),
        (sampling.check_keyed_noise, sampling.check_walks, sampling.check_seeded_text),
        harmless_to=sampling.check_laws,
    ),
    Mutation(
        "noise without the seed",
        NOISE,
        ((KEY, "key = _mix(0 * seeds + positions * _WEYL)"),),
        (sampling.check_keyed_noise, sampling.check_walks, sampling.check_seeded_text),
    ),
    Mutation(
        "noise without the token",
        NOISE,
        (("_mix(key + tokens * _WEYL)", "_mix(key + 0 * tokens)"),),
        (sampling.check_keyed_noise, sampling.check_walks, sampling.check_seeded_text),
    ),
    Mutation(
        "noise in float32",
        NOISE,
        (
            (
                "return (bits.double() + 0.5) * 2.0**-32",
                "return ((bits.float() + 0.5) / 2**32).double()",
            ),
        ),
        (sampling.check_keyed_noise,),
    ),
    Mutation(
        "positions and seeds are added up",
        NOISE,
        ((KEY, "key = _mix(seeds + positions)"),),
        (sampling.check_keyed_noise, sampling.check_walks),
    ),
    Mutation(
        "the shift drags the sign in",
        NOISE,
        (("return (value >> bits) & ((1 << (64 - bits)) - 1)", "return value >> bits"),),
        (sampling.check_keyed_noise,),
    ),
)

FILTER_MUTATIONS = (
    Mutation(
        "top_k keeps one too many",
        SAMPLING,
        (("in_top_k = ranks < rules", "in_top_k = ranks <= rules"),),
        (sampling.check_filter_definition,),
    ),
    Mutation(
        "top_p keeps a token that isn't needed",
        SAMPLING,
        (("(mass < rules.top_p[:, None])", "(mass <= rules.top_p[:, None])"),),
        (sampling.check_exact_edges,),
        harmless_to=sampling.check_walks,
    ),
    Mutation(
        "top_p leaves out the token that reaches it",
        SAMPLING,
        (("mass = pad(summed[:, :-1], (1, 0)) / total", "mass = summed / total"),),
        (sampling.check_exact_edges, sampling.check_filter_definition),
    ),
    Mutation(
        "top_p before top_k",
        SAMPLING,
        (
            ("weights = scaled.exp() * in_top_k", "weights = scaled.exp()"),
            ("limited = rules.top_k < ids.shape[-1]", "limited = rules.top_k < 0"),
        ),
        (sampling.check_filter_definition,),
        harmless_to=sampling.check_exact_edges,
    ),
    Mutation(
        "top_p's mass is not renormalised after top_k",
        SAMPLING,
        (("limited = rules.top_k < ids.shape[-1]", "limited = rules.top_k < 0"),),
        (sampling.check_filter_definition,),
    ),
    Mutation(
        "min_p before the temperature",
        SAMPLING,
        (
            (
                "in_min_p = scaled >= rules.min_p.log()[:, None]",
                "in_min_p = scaled * rules.temperatures[:, None] >= rules.min_p.log()[:, None]",
            ),
        ),
        (sampling.check_filter_definition,),
    ),
    Mutation(
        "rows without order ignore min_p",
        SAMPLING,
        (("scaled, scaled >= rules.min_p.log()[:, None]", "scaled, scaled <= 0"),),
        (sampling.check_single_draws,),
        harmless_to=sampling.check_filter_definition,
    ),
    Mutation(
        "equal logits are sampled by higher id",
        SAMPLING,
        (
            (
                "ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices",
                "ids = logits.shape[-1] - 1 - torch.sort(\n"
                "        logits.flip(-1), dim=-1, descending=True, stable=True\n"
                "    ).indices",
            ),
        ),
        (sampling.check_filter_definition, sampling.check_exact_edges),
    ),
    Mutation(
        "the pool takes topk's order among equals",
        SAMPLING,
        (
            (
                "ids, order = found.indices.sort(-1)",
                "ids, order = found.indices.sort(-1, descending=True)",
            ),
        ),
        (sampling.check_single_draws,),
        harmless_to=sampling.check_filter_definition,
    ),
    Mutation(
        "the pool is sure of everything",
        SAMPLING,
        (("return ranked, sure | whole", "return ranked, sure | True"),),
        (sampling.check_single_draws,),
        harmless_to=sampling.check_seeded_text,
    ),
    Mutation(
        "the pool is sure of its last equals",
        SAMPLING,
        (("certain = values > values[:, -1:] if", "certain = values >= values[:, -1:] if"),),
        (sampling.check_single_draws,),
    ),
    Mutation(
        "margins know a token's own place alone",
        MARGINS,
        (
            ("reach = scaled + odds", "reach = scaled + odds.sign() * 1e3"),
            ("odds.gather(-1, above))\n", "odds)\n"),
        ),
        (sampling.check_margins,),
        harmless_to=sampling.check_filter_definition,
    ),
    Mutation(
        "margins are those of the last kept token",
        MARGINS,
        (("reach = scaled + odds", "reach = scaled + odds.sign() * 1e3"),),
        (sampling.check_margins,),
    ),
)

EDIT_MUTATIONS = (
    Mutation(
        "bias after the penalties",
        EDITS,
        (
            ("edited = logits + self.bias.to(logits.dtype)", "edited = logits"),
            (
                "return self._ban(edited)",
                "return self._ban(edited + self.bias.to(logits.dtype))",
            ),
        ),
        (sampling.check_edited_rows,),
    ),
    Mutation(
        "repetition over the output only",
        EDITS,
        (("torch.where(self.prompt | used,", "torch.where(used,"),),
        (sampling.check_edited_rows,),
        harmless_to=sampling.check_walks,
    ),
    Mutation(
        "repetition divides negative logits",
        EDITS,
        (("torch.where(edited > 0, edited / factor, edited * factor)", "edited / factor"),),
        (sampling.check_edited_rows,),
    ),
    Mutation(
        "presence over the prompt as well",
        EDITS,
        (
            (
                "self.presence.to(logits.dtype)[:, None] * used",
                "self.presence.to(logits.dtype)[:, None] * (used | self.prompt)",
            ),
        ),
        (sampling.check_edited_rows, sampling.check_walks),
    ),
    Mutation(
        "frequency counts a token once",
        EDITS,
        (
            (
                "self.frequency.to(logits.dtype)[:, None] * self.counts",
                "self.frequency.to(logits.dtype)[:, None] * used",
            ),
        ),
        (sampling.check_edited_rows, sampling.check_walks),
    ),
    Mutation(
        "stop tokens wait one token too long",
        EDITS,
        (("(self.waits > 0)", "(self.waits >= 0)"),),
        (sampling.check_edited_rows, sampling.check_walks),
    ),
    Mutation(
        "stop tokens never stop waiting",
        EDITS,
        (("waits=self.waits - 1, ", ""),),
        (sampling.check_edited_rows, sampling.check_walks),
    ),
    Mutation(
        "a bad word's start matches anywhere",
        EDITS,
        (
            (
                "(start == self.recent[:, None])).all(-1)",
                "(start[..., None] == self.recent[:, None, None]).any(-1)).all(-1)",
            ),
        ),
        (sampling.check_edited_rows,),
    ),
    Mutation(
        "a batch's shorter histories are aligned on the left",
        EDITS,
        (
            (
                "pad(part.recent, (length - 1 - part.recent.shape[1], 0), value=NO_TOKEN)",
                "pad(part.recent, (0, length - 1 - part.recent.shape[1]), value=NO_TOKEN)",
            ),
        ),
        (sampling.check_edited_rows,),
    ),
)

WALK_MUTATIONS = (
    Mutation(
        "every row is penalised for the root's path",
        WALK,
        (("edits.take(further).advance(drawn[further])", "edits.take(further)"),),
        (sampling.check_walks, sampling.check_seeded_text),
    ),
    Mutation(
        "greedy below the root",
        WALK,
        ((DRAWN, f"{DRAWN}\n        if depth:\n            drawn = best_token(edited)"),),
        (sampling.check_walks, sampling.check_seeded_text),
        harmless_to=sampling.check_single_draws,
    ),
    Mutation(
        "a drawn token's position is its root's",
        WALK,
        ((DRAWN, DRAWN.replace(" + depth + 1", " + depth")),),
        (sampling.check_walks, sampling.check_seeded_text),
        harmless_to=sampling.check_single_draws,
    ),
    Mutation(
        "all depths share one noise",
        WALK,
        ((DRAWN, DRAWN.replace(" + depth + 1", " + 1")),),
        (sampling.check_walks, sampling.check_seeded_text),
    ),
    Mutation(
        "the seed of another request below the root",
        WALK,
        ((GO_ON, GO_ON.replace("rules.take(further)", "rules.take(further.flip(0))")),),
        (sampling.check_walks, sampling.check_seeded_text),
    ),
    Mutation(
        "the walk goes on at a padding node",
        WALK,
        (("fits = live[going] & (tree", "fits = (tree"),),
        (sampling.check_walks,),
    ),
    Mutation(
        "the walk goes to a cousin of the child",
        WALK,
        (
            (
                "fits = live[going] & (tree.parents[going] == rows[:, None])",
                "fits = live[going] & (tree.depths[going] == depth + 1)",
            ),
        ),
        (sampling.check_walks,),
    ),
    Mutation(
        "requests of a mixed batch come back in another order",
        CHOOSING,
        (("torch.cat([chosen, others]).argsort()", "torch.cat([chosen, others])"),),
        (sampling.check_seeded_text,),
        harmless_to=sampling.check_walks,
        error=RuntimeError,  # rows that no walk visits hold no token
    ),
    Mutation(
        "all requests sample with the first one's seed",
        CHOOSING,
        (
            (
                "[sampling.seed for sampling in samplings]",
                "[samplings[0].seed for sampling in samplings]",
            ),
        ),
        (sampling.check_seeded_text,),
        harmless_to=sampling.check_walks,
    ),
    Mutation(
        "a child is accepted with its share of the whole",
        REJECTION,
        (("chance.accepts(float(left[token]) / total)", "chance.accepts(float(left[token]))"),),
        (sampling.check_laws,),
        harmless_to=sampling.check_walks,
    ),
    Mutation(
        "a rejected child may still be the bonus",
        REJECTION,
        (("left[token] = 0.0", "pass"),),
        (sampling.check_laws,),
    ),
)

LOGPROB_MUTATIONS = (
    Mutation(
        "log-probabilities at the request's temperature",
        LOOP,
        (
            (
                "token_logprobs(logits[b, rows], tokens[b]",
                "token_logprobs(logits[b, rows] / (request.sampling.temperature or 1), tokens[b]",
            ),
        ),
        (sampling.check_logprobs,),
        harmless_to=sampling.check_seeded_text,
    ),
    Mutation(
        "log-probabilities of the tree's first rows",
        LOOP,
        (("rows = accepted.rows[b, : len(tokens[b])]", "rows = torch.arange(len(tokens[b]))"),),
        (sampling.check_logprobs,),
        harmless_to=sampling.check_seeded_text,
    ),
    Mutation(
        "log-probabilities one row late",
        LOOP,
        (
            (
                "rows = accepted.rows[b, : len(tokens[b])]",
                "rows = accepted.rows[b, : len(tokens[b])].roll(-1)",
            ),
        ),
        (sampling.check_logprobs,),
        harmless_to=sampling.check_seeded_text,
    ),
    Mutation(
        "log-probabilities of a cut run are kept",
        "ddtree.engine.engine",
        (("logprobs[: len(kept)]", "logprobs"),),
        (sampling.check_logprobs,),
        harmless_to=sampling.check_seeded_text,
    ),
)
