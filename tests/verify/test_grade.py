"""Each planted fault must be called a bug, each real near-tie must not."""

import asyncio

import pytest
from synthetic import STOP, ULP, Target, output

from ddtree.records.summary import Losslessness
from ddtree.verify.control import ControlResult, run_control
from ddtree.verify.grade import OutputGrade, baseline_grade, grade_cell, grade_output
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import CachedScorer, Scorer

PROMPT = (7, 3, 9)
LENGTH = 12


def grade(
    target: Scorer | None,
    arm: Output,
    base: Output,
    dtype: str = "bfloat16",
    control: ControlResult | None = None,
) -> OutputGrade:
    return asyncio.run(grade_output(base, arm, target, dtype, control))


def baseline(target: Target, tokens: int = LENGTH) -> Output:
    return output(PROMPT, target.greedy(PROMPT, tokens))


def cell(target: Scorer | None, pairs: list[tuple[Output, Output]]) -> Losslessness:
    return asyncio.run(grade_cell(pairs, target, "bfloat16"))


def swapped(target: Target, index: int, rank: int = 1) -> Output:
    """An arm that takes another token at `index` and is right from there on."""
    base = target.greedy(PROMPT, LENGTH)
    other = target.ranked((*PROMPT, *base[:index]))[rank]
    return output(PROMPT, target.follow(PROMPT, (*base[:index], other), LENGTH))


def test_identical_output_is_exact_and_not_scored() -> None:
    target = Target()
    base = baseline(target)
    assert grade(target, base, base).verdict == "identical"
    assert target.calls == []
    assert cell(target, [(base, base)]).grade == "exact"


def test_near_tie_is_explained() -> None:
    target = Target(margins={len(PROMPT) + 4: ULP})
    found = grade(target, swapped(target, 4), baseline(target))
    assert found.verdict == "near-tie"
    assert found.comparison.first_divergence == 4
    (finding,) = found.findings
    assert (finding.index, finding.rank, finding.gap, finding.gap_ulps) == (4, 2, ULP, 1.0)
    result = cell(target, [(baseline(target), swapped(target, 4))])
    assert (result.grade, result.near_ties, result.largest_gap_ulps) == ("near-ties", 1, 1.0)


def test_exact_tie_broken_the_other_way_is_explained() -> None:
    target = Target(margins={len(PROMPT): 0.0})
    found = grade(target, swapped(target, 0), baseline(target))
    assert found.verdict == "tie"
    assert cell(target, [(baseline(target), swapped(target, 0))]).near_ties == 1


@pytest.mark.parametrize("index", [0, 5, LENGTH - 1])
@pytest.mark.parametrize("rank", [1, 2, 20])
def test_one_wrong_token_is_a_bug_wherever_it_is(index: int, rank: int) -> None:
    target = Target()
    found = grade(target, swapped(target, index, rank), baseline(target))
    assert found.verdict == "bug"
    assert [finding.index for finding in found.findings] == [index]


def test_skipped_token_is_a_bug() -> None:
    target = Target()
    ids = target.greedy(PROMPT, LENGTH + 1)
    found = grade(target, output(PROMPT, ids[:5] + ids[6:]), baseline(target))
    assert found.verdict == "bug"


def test_repeated_token_is_a_bug() -> None:
    target = Target()
    ids = target.greedy(PROMPT, LENGTH)
    found = grade(target, output(PROMPT, ids[:5] + ids[4:-1]), baseline(target))
    assert found.verdict == "bug"


def test_wrong_token_in_the_output_alone_is_a_bug_twice() -> None:
    # The right token stayed in the cache: what follows fits the baseline's prefix, not its own.
    target = Target()
    ids = list(target.greedy(PROMPT, LENGTH))
    ids[5] = target.ranked((*PROMPT, *ids[:5]))[1]
    found = grade(target, output(PROMPT, ids), baseline(target))
    assert found.verdict == "bug"
    assert len(found.findings) > 1


def test_a_tie_hides_no_later_bug() -> None:
    target = Target(margins={len(PROMPT) + 2: ULP})
    tied = swapped(target, 2).token_ids
    wrong = target.ranked((*PROMPT, *tied[:8]))[3]
    arm = output(PROMPT, target.follow(PROMPT, (*tied[:8], wrong), LENGTH))
    found = grade(target, arm, baseline(target))
    assert [finding.verdict for finding in found.findings] == ["near-tie", "bug"]
    assert found.verdict == "bug"
    result = cell(target, [(baseline(target), arm)])
    assert (result.grade, result.bugs, result.near_ties) == ("not-lossless", 1, 0)


def test_after_a_tie_tokens_are_judged_on_their_own_prefix() -> None:
    # The arm's tail differs from the baseline's everywhere, and is right.
    target = Target(margins={len(PROMPT): ULP})
    arm, base = swapped(target, 0), baseline(target)
    assert sum(a != b for a, b in zip(arm.token_ids, base.token_ids, strict=True)) > LENGTH // 2
    assert len(grade(target, arm, base).findings) == 1


def test_the_baselines_own_step_off_the_reference_is_judged_too() -> None:
    # In a batch the baseline may itself take the other side of a tie: the arm is the right one.
    for margin, verdict in ((ULP, "near-tie"), (3.0, "bug")):
        target = Target(margins={len(PROMPT) + 4: margin})
        found = grade(target, baseline(target), swapped(target, 4))
        assert found.verdict == verdict
        assert found.findings[0].of_baseline


@pytest.mark.parametrize(
    ("tokens", "finish", "limit"),
    [
        (LENGTH - 1, "length", LENGTH),
        (LENGTH - 1, "stop", LENGTH),
        (LENGTH - 1, "length", LENGTH - 1),
        (LENGTH + 1, "length", LENGTH),
        (LENGTH + 1, "length", LENGTH + 1),
        (0, "stop", LENGTH),
    ],
)
def test_other_lengths_of_the_same_tokens_are_bugs(tokens: int, finish: str, limit: int) -> None:
    target = Target()
    arm = output(PROMPT, target.greedy(PROMPT, tokens), finish, limit)
    found = grade(target, arm, baseline(target))
    assert found.verdict == "bug"
    assert found.comparison.fault is not None


@pytest.mark.parametrize(
    ("cut", "finish", "limit"),
    [(2, "length", LENGTH), (2, None, LENGTH), (0, "length", LENGTH - 1)],
)
def test_a_tie_excuses_no_wrong_length(cut: int, finish: str | None, limit: int) -> None:
    target = Target(margins={len(PROMPT) + 4: ULP})
    ids = swapped(target, 4).token_ids
    arm = output(PROMPT, ids[: len(ids) - cut], finish, limit)
    assert grade(target, arm, baseline(target)).verdict == "bug"


def test_running_past_a_stop_after_a_tie_is_a_bug() -> None:
    target = Target(margins={len(PROMPT) + 4: ULP})
    base = output(PROMPT, (*target.greedy(PROMPT, LENGTH - 1), STOP), "stop", LENGTH)
    ids = swapped(target, 4).token_ids
    arm = output(PROMPT, (*ids[:8], STOP, *ids[9:]), "length", LENGTH)
    assert "stop token" in str(grade(target, arm, base).comparison.fault)


@pytest.mark.parametrize(
    ("base", "arm", "limit", "verdict"),
    [
        ("stop", "stop", LENGTH, "identical"),
        ("length", "length", LENGTH, "identical"),
        # Capped at the baseline's length: a stop token there may be called either.
        ("stop", "length", LENGTH, "identical"),
        ("stop", "length", LENGTH + 1, "bug"),
        ("length", "stop", LENGTH, "bug"),
        ("length", None, LENGTH, "bug"),
    ],
)
def test_the_same_tokens_must_have_ended_alike(
    base: str, arm: str | None, limit: int, verdict: str
) -> None:
    target = Target()
    ids = target.greedy(PROMPT, LENGTH)
    pair = output(PROMPT, ids, arm, limit), output(PROMPT, ids, base)
    assert grade(target, *pair).verdict == verdict


def test_a_tie_may_end_the_answer_earlier() -> None:
    target = Target(margins={len(PROMPT) + 4: ULP})
    ids = swapped(target, 4).token_ids
    arm = output(PROMPT, ids[:9], "stop", LENGTH)
    assert grade(target, arm, baseline(target)).verdict == "near-tie"


@pytest.mark.parametrize(("margin", "verdict"), [(5e-4, "near-tie"), (2e-3, "bug"), (0.5, "bug")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float32_has_no_room_for_bfloat16_excuses(margin: float, verdict: str, dtype: str) -> None:
    target = Target(margins={len(PROMPT) + 4: margin})
    wide = ControlResult(9, 1000, 0, 0, quantile=5.0, largest_gap_ulps=40.0)
    found = grade(target, swapped(target, 4), baseline(target), dtype, wide)
    assert found.verdict == verdict


def test_a_gap_that_only_the_control_explains() -> None:
    target = Target(margins={len(PROMPT) + 4: 4 * ULP})
    pair = swapped(target, 4), baseline(target)
    assert grade(target, *pair).verdict == "suspect"
    explains = ControlResult(9, 1000, 3, 0, quantile=4 * ULP, largest_gap_ulps=5.0)
    assert grade(target, *pair, control=explains).verdict == "near-tie"
    # A control that is itself at fault explains nothing.
    broken = ControlResult(9, 1000, 3, 1, quantile=4 * ULP, largest_gap_ulps=50.0)
    assert grade(target, *pair, control=broken).verdict == "suspect"


def test_without_logits_a_difference_is_unclassified() -> None:
    target = Target(margins={len(PROMPT) + 4: ULP})
    pair = baseline(target), swapped(target, 4)
    silent = Target(has_logits=False)
    for scorer in (None, silent):
        assert cell(scorer, [pair]).grade == "unclassified"
    # What needs no logits is still known.
    base = pair[0]
    assert cell(None, [(base, base)]).grade == "exact"
    cut = output(PROMPT, base.token_ids[:-1], "length", LENGTH)
    assert cell(None, [(base, cut), pair]).grade == "not-lossless"


def test_a_suspect_alone_is_not_lossless() -> None:
    target = Target(margins={len(PROMPT) + 4: 5 * ULP})
    result = cell(target, [(baseline(target), swapped(target, 4))])
    assert (result.grade, result.suspects, result.bugs) == ("not-lossless", 1, 0)


def test_nothing_compared_is_not_exact() -> None:
    assert cell(Target(), []).grade == "unclassified"


def test_counts_add_up_over_a_cell() -> None:
    target = Target(margins={len(PROMPT) + 4: ULP})
    base = baseline(target)
    pairs = [(base, base), (base, swapped(target, 4)), (base, swapped(target, 6)), (base, base)]
    control = ControlResult(9, 36, 2, 0, quantile=ULP, largest_gap_ulps=1.5)
    result = asyncio.run(grade_cell(pairs, target, "bfloat16", control))
    assert (result.outputs, result.identical, result.near_ties, result.bugs) == (4, 2, 1, 1)
    assert (result.control_rows, result.control_positions, result.control_flips) == (9, 36, 2)
    assert result.control_largest_gap_ulps == 1.5


def test_arms_with_the_same_output_are_scored_once() -> None:
    target = Target(margins={len(PROMPT) + 4: ULP})
    pair = baseline(target), swapped(target, 4)
    scorer = CachedScorer(target)
    for _ in range(3):
        assert cell(scorer, [pair, pair]).grade == "near-ties"
    assert target.calls == [(len(PROMPT), 1)]


def test_reordered_sums_alone_are_never_called_a_bug() -> None:
    # Outputs decoded several rows at a time, each logit up to one step off: at planted ties of
    # one step they may go either way. The control measures just that.
    target = Target(margins={n: ULP for n in range(3, 60, 4)}, wobble=ULP)
    prompts = [(n, n + 1, n + 2) for n in range(1, 21)]
    base = [output(p, target.greedy(p, LENGTH)) for p in prompts]
    arms = [output(p, target.greedy(p, LENGTH, rows=9)) for p in prompts]
    control = asyncio.run(run_control(base, target, 9, "bfloat16"))
    assert control is not None
    assert control.flips > 0
    pairs = list(zip(base, arms, strict=True))
    result = asyncio.run(grade_cell(pairs, target, "bfloat16", control))
    assert result.near_ties > 0
    assert (result.grade, result.suspects, result.bugs) == ("near-ties", 0, 0)


def test_baseline_cell() -> None:
    assert baseline_grade(5) == Losslessness("baseline", 5, 5)


def through_eos(target: Target, index: int, eos: int) -> Output:
    """An arm that decodes `eos` at `index`, where it ties with the best token, and goes on."""
    base = target.greedy(PROMPT, LENGTH)
    return output(PROMPT, target.follow(PROMPT, (*base[:index], eos), LENGTH))


def test_a_divergence_through_an_end_of_sequence_id_is_a_bug() -> None:
    target = Target(margins={len(PROMPT) + 4: ULP})
    base = baseline(target)
    eos = target.ranked((*PROMPT, *base.token_ids[:4]))[1]
    arm = through_eos(target, 4, eos)

    def verdict(arm: Output, eos_ids: frozenset[int]) -> str:
        found = asyncio.run(grade_output(base, arm, target, "bfloat16", None, eos_ids))
        return found.verdict

    assert verdict(arm, frozenset()) == "near-tie"
    assert verdict(arm, frozenset({eos})) == "bug"
    assert verdict(arm, frozenset({STOP})) == "near-tie"
    # Stopping there is what it should have done.
    ended = output(PROMPT, arm.token_ids[:5], "stop", LENGTH)
    assert verdict(ended, frozenset({eos})) == "near-tie"
    pairs = [(base, arm)]
    cell_grade = asyncio.run(grade_cell(pairs, target, "bfloat16", eos_ids=frozenset({eos})))
    assert (cell_grade.grade, cell_grade.bugs) == ("not-lossless", 1)


def steady(flips: int, positions: int, faults: int = 0) -> ControlResult:
    return ControlResult(9, positions, flips, faults, 0.0, 0.0)


def test_more_near_ties_than_the_control_explains_are_suspects() -> None:
    # Every second place is a near-tie, and the arm takes the wrong one each time.
    margins = {len(PROMPT) + n: ULP for n in range(0, 60, 2)}
    target = Target(margins=margins)
    base = baseline(target, 60)
    taken: tuple[int, ...] = ()
    for index in range(60):
        rank = 1 if index % 2 == 0 else 0
        taken += (target.ranked((*PROMPT, *taken))[rank],)
    pairs = [(base, output(PROMPT, taken)), (base, base)]

    def graded(control: ControlResult | None) -> Losslessness:
        return asyncio.run(grade_cell(pairs, target, "bfloat16", control))

    unknown = graded(None)
    assert (unknown.grade, unknown.near_ties, unknown.suspects) == ("near-ties", 1, 0)
    assert (unknown.tokens, unknown.near_tie_tokens, unknown.near_tie_excess) == (120, 30, 0)
    quiet = graded(steady(0, 1000))
    assert (quiet.grade, quiet.near_ties, quiet.suspects) == ("not-lossless", 0, 1)
    assert 20 < quiet.near_tie_excess < 30
    assert graded(steady(300, 1000)).grade == "near-ties"
    # Flips that rounding can't explain excuse nothing.
    assert graded(steady(300, 1000, faults=300)).grade == "not-lossless"
