"""The checker is checked: each planted fault is called a bug, reordered sums are not."""

import asyncio
from dataclasses import replace

import pytest
from planted_engine import DTYPES, FILTERED, PLAN, VOCABULARY, check, make_engine, running

from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.verify.run import run_verify
from mutations.planting import Mutation, planted

LAYOUT, ACCEPT, WALK = "ddtree.core.layout", "ddtree.core.accept", "ddtree.core.walk"
LOOP, CHOOSING, PLAN_MODULE = "ddtree.engine.loop", "ddtree.engine.choosing", "ddtree.engine.plan"
GREEDY = Sampling()
TREE = Arm("ddtree", 8, 4)

DRAW = "drawn = _choose(edited, rules, positions + depth + 1)"
MOVE = "self.pool.move(source.flatten(), (base[:, None] + columns).flatten())"
APPLY = "edited = raw if edits is None else edits.apply(raw)"
ADVANCE = "edits = edits.take(further).advance(drawn[further])"
MATCHED = "matched = tree.live() & (tree.tokens == choices.gather(1, tree.parents))"
# A quarter of all pairs of tokens, and a bias on a quarter of all tokens.
PAIRS = tuple(f"t{a} t{(7 * a + k) % VOCABULARY}" for a in range(VOCABULARY) for k in range(16))
BIASED = Sampling(0.8, logit_bias=tuple((token, 6.0) for token in range(0, VOCABULARY, 4)))
STOPS_FROM = 5

# (name, module, old, new, sampling under which it shows, words of the cause)
FAULTS = [
    (
        "siblings see each other",
        LAYOUT,
        "visible[:, :, 0] &= live",
        "visible |= (parents[:, :, None] == parents[:, None, :]) & (depths[:, None, :] > 0)\n"
        "    visible[:, :, 0] &= live",
        GREEDY,
        "saw siblings",
    ),
    (
        "positions by node index",
        LAYOUT,
        "positions[:, None] + depths, visible, live",
        "positions[:, None] + torch.arange(width + 1), visible, live",
        GREEDY,
        "wrong positions",
    ),
    (
        "keys of rejected rows stay",
        LOOP,
        MOVE,
        "pass",
        GREEDY,
        "rejected keys are still seen",
    ),
    (
        "first draft tokens are accepted unverified",
        ACCEPT,
        MATCHED,
        MATCHED + "\n    matched |= tree.live() & (tree.depths == 1) & (tree.ranks == 0)\n"
        "    matched &= (tree.depths > 1) | (tree.ranks == 0)",
        GREEDY,
        "without being verified",
    ),
    (
        "the best token instead of a draw below the root",
        WALK,
        DRAW,
        DRAW + "\n        drawn = best_token(edited) if depth else drawn",
        FILTERED,
        "below the root",
    ),
    (
        "the seed is ignored",
        CHOOSING,
        "[SeededSampling(r.sampling, r.seed) for r in requests]",
        "[SeededSampling(r.sampling, 0) for r in requests]",
        FILTERED,
        "seed",
    ),
    (
        "no filters below the root",
        WALK,
        DRAW,
        "if depth:\n"
        "            whole = torch.full_like(rules.top_k, raw.shape[-1])\n"
        "            rules = SamplingRules(rules.seeds, rules.temperatures, whole,\n"
        "                                  torch.ones_like(rules.top_p), rules.min_p)\n"
        "        " + DRAW,
        Sampling(2.0, top_p=0.5),
        "filter",
    ),
    (
        "penalties with one row for all nodes",
        WALK,
        ADVANCE,
        "edits = edits.take(further)",
        Sampling(0.8, frequency_penalty=-2.0),  # repeats come in runs, so paths hold them
        "below the root",
    ),
    (
        "words banned by the root's path for all nodes",
        WALK,
        ADVANCE,
        "recent = edits.take(further).recent\n            "
        + ADVANCE
        + "\n            edits.recent.copy_(recent)",
        Sampling(bad_words=PAIRS),
        "bad_words",
    ),
    (
        "stops banned by the root's path for all nodes",
        WALK,
        ADVANCE,
        "waits = edits.take(further).waits\n            "
        + ADVANCE
        + "\n            edits.waits.copy_(waits)",
        Sampling(min_tokens=STOPS_FROM, stop_token_ids=tuple(range(32))),
        "too few",  # one place in each text
    ),
    (
        "bias at the root's row alone",
        WALK,
        APPLY,
        "if edits is not None and depth:\n            edits.bias.zero_()\n        " + APPLY,
        BIASED,
        "below the root",
    ),
]


def run(dtype, sampling, *, twins=False):
    """One way of sampling, two seeds a prompt, one tree at a time."""
    return check(
        make_engine(dtype, twins),
        arms=(TREE,),
        samplings=(sampling,),
        concurrencies=(1,),
        samples=2,
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_planted_fault_is_a_bug(fault, dtype):
    name, module, old, new, sampling, words = fault
    with planted(Mutation(name, module, ((old, new),), ())):
        report = run(dtype, sampling)
    found = [row for row in report.results[0].rows if row.losslessness.bugs]
    assert report.verdict == "not-lossless"
    assert report.exit_status == 3
    assert found
    assert report.headline.startswith("NOT lossless")
    cause = found[-1].signature
    assert cause is not None
    assert words in cause.hint, cause


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sampling", [FAULTS[i][4] for i in (-3, -2, -1)], ids=lambda s: s.label)
def test_bans_and_bias_along_paths_are_sound(sampling, dtype):
    report = run(dtype, sampling)
    assert report.verdict == "exact" if dtype == "float32" else report.exit_status == 0
    assert max(row.acceptance_length or 1 for row in report.results[0].rows) > 1.1


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_to_the_last_token_are_a_bug(dtype):
    """Equal logits, bit for bit: the lowest id is the rule, and the control never departs."""
    mutation = Mutation(
        "last-wins argmax",
        WALK,
        (
            ("best = widened(logits).max(-1)", "best = widened(logits).flip(-1).max(-1)"),
            (
                "return Choices(best.indices, invalid,",
                "return Choices(logits.shape[-1] - 1 - best.indices, invalid,",
            ),
        ),
        (),
    )
    with planted(mutation):
        report = run(dtype, GREEDY, twins=True)
    # Every arm does the same, so only the baseline's own scores show it.
    assert report.verdict == "not-lossless"
    assert report.results[0].rows[0].losslessness.bugs
    assert report.results[0].rows[0].losslessness.tie_excess
    sound = run(dtype, GREEDY, twins=True)
    assert sound.verdict == "exact" if dtype == "float32" else sound.exit_status == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_reordered_sums_are_no_bug(dtype):
    """Attention of wide passes summed in another order: what a faster kernel does."""
    mutation = Mutation(
        "keys in reverse order for several rows",
        PLAN_MODULE,
        (
            (
                "            outputs.append(\n",
                "            mask = self._mask(span, layer.window, heads // groups, q.dtype)\n"
                "            if rows > 1 and mask is not None:\n"
                "                scores = packed[span.first : span.last] @ keys.mT * layer.scale\n"
                "                weights = (scores + mask).flip(-1).float().softmax(-1)\n"
                "                outputs.append(weights.to(values.dtype) @ values.flip(-2))\n"
                "                continue\n"
                "            outputs.append(\n",
            ),
        ),
        (),
    )
    with planted(mutation):
        report = check(
            make_engine(dtype),
            arms=(TREE,),
            samplings=(GREEDY, FILTERED),
            concurrencies=(1,),
            dtype=dtype,
            samples=3,
        )
    assert report.verdict == {"float32": "exact", "bfloat16": "near-ties"}[dtype], report.headline
    control = report.results[0].control
    assert control is not None
    assert control.largest_gap_ulps > 0, "nothing was reordered"


def test_without_scores_differences_are_unclassified():
    """A server that hides logits is never called lossless."""
    mutation = Mutation(
        "first draft tokens are accepted unverified", ACCEPT, ((MATCHED, FAULTS[3][3]),), ()
    )
    plan = replace(PLAN, arms=(TREE,), samplings=(GREEDY,), concurrencies=(1,))
    with planted(mutation), running(make_engine()) as source:
        report = asyncio.run(run_verify(plan, source, None, lambda _: None))
    assert report.verdict == "unclassified"
    assert report.exit_status == 4
    assert "unclassified" in report.headline
