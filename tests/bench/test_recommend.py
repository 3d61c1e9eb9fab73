import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from summaries import AR, CHAIN, cell, lossless, tree

from ddtree.bench.recommend import is_candidate, recommend, winners
from ddtree.records.arms import Arm
from ddtree.records.summary import CellSummary, Interval, Losslessness, Verdict


def one(*cells: CellSummary) -> Arm | None:
    """The arm chosen at the only setting; the verdict names the same, None for `ar`."""
    verdict = recommend([cell(AR), *cells])
    (choice,) = verdict.choices
    assert verdict.arm == (None if choice.arm == AR else choice.arm)
    return choice.arm


def test_fastest_wins() -> None:
    assert one(cell(CHAIN, 1.5), cell(tree(8), 1.8), cell(tree(16), 1.7)) == tree(8)


def test_within_two_percent_the_smaller_wins() -> None:
    assert one(cell(tree(8), 1.97), cell(tree(16), 2.0)) == tree(8)
    assert one(cell(tree(8), 1.95), cell(tree(16), 2.0)) == tree(16)
    assert one(cell(tree(16, 8), 2.0), cell(tree(16, 4), 1.99)) == tree(16, 4)
    assert one(cell(tree(4, 8), 2.0), cell(tree(16, 2), 2.0)) == tree(4, 8)
    assert one(cell(CHAIN, 1.97), cell(tree(4), 2.0)) == CHAIN


def test_ties_are_with_the_best_not_with_each_other() -> None:
    # 1.93 ties with 1.96 and 1.96 with 2.0, but 1.93 does not tie with the best.
    assert one(cell(tree(4), 1.93), cell(tree(8), 1.965), cell(tree(16), 2.0)) == tree(8)


def test_smaller_means_chain_then_nodes_then_topk_then_window() -> None:
    arms = [
        AR,
        CHAIN,
        tree(4, 8),
        tree(8, 2),
        tree(8, 4),
        Arm("ddtree", 8, 4, 64),
        Arm("ddtree", 8, 4, 1024),
        Arm("ddtree", 8, 4, "full"),
        tree(16, 1),
    ]
    assert sorted(reversed(arms), key=lambda arm: arm.size) == arms


@pytest.mark.parametrize(
    ("speedup", "interval"),
    [
        (0.9, (0.85, 0.95)),
        (1.0, (0.99, 1.01)),
        (1.05, (0.98, 1.12)),
        (1.05, (1.0, 1.1)),
        (0.9, None),
        (1.0, None),
        (9.0, None),
    ],
)
def test_what_does_not_beat_ar_leaves_ar(
    speedup: float, interval: tuple[float, float] | None
) -> None:
    verdict = recommend([cell(AR), cell(tree(8), speedup, interval=interval)])
    assert verdict.arm is None
    assert verdict.choices[0].arm == AR
    assert verdict.choices[0].speedup == 1.0
    assert f"{speedup:.2f}x" in verdict.choices[0].reason
    assert verdict.headline.startswith("Ship ar")


def test_an_uncertain_arm_does_not_block_a_certain_one() -> None:
    assert one(cell(tree(16), 1.9, interval=(0.9, 3.0)), cell(tree(8), 1.5)) == tree(8)


def test_without_an_interval_nothing_is_won() -> None:
    verdict = recommend([cell(AR), cell(tree(8), 1.5, interval=None)])
    assert verdict.arm is None
    assert verdict.choices[0].arm == AR
    assert "1.50x, n too small for an interval" in verdict.choices[0].reason
    assert verdict.headline.startswith("Ship ar")
    assert "n too small" in verdict.headline
    assert any("n too small" in warning for warning in verdict.warnings)
    assert one(cell(tree(16), 9.0, interval=None), cell(tree(8), 1.5)) == tree(8)


def test_a_win_must_survive_being_one_of_many() -> None:
    # One of twenty arms that are no better than ar has such an interval by chance.
    doubtful = dataclasses.replace(cell(tree(8), 1.2, interval=(1.01, 1.4)), speedup_p=0.03)
    assert one(doubtful) == tree(8)
    idle = [cell(tree(n), 1.0, interval=(0.9, 1.1)) for n in (1, 2, 3, 4)]
    verdict = recommend([cell(AR), doubtful, *idle])
    assert verdict.arm is None
    assert verdict.choices[0].arm == AR
    assert verdict.choices[0].reason.endswith(
        "ddtree(8,4) at 1.20x (1.01 to 1.40), not surer than the best of 5 equal arms would be by "
        "chance"
    )
    assert one(dataclasses.replace(doubtful, speedup_p=0.009), *idle) == tree(8)


def test_what_cannot_win_is_no_part_of_the_many() -> None:
    doubtful = dataclasses.replace(cell(tree(8), 1.2, interval=(1.01, 1.4)), speedup_p=0.03)
    unfit = [
        cell(tree(1), 1.5, state="invalid"),
        cell(tree(2), 1.5, grade="not-lossless"),
        cell(tree(3), 1.5, interval=None),
    ]
    assert one(doubtful, *unfit) == tree(8)
    assert [c.arm for c in winners([cell(AR), doubtful, *unfit])] == [tree(8)]


def test_each_setting_is_a_family_of_its_own() -> None:
    doubtful = [
        dataclasses.replace(cell(tree(8), 1.2, setting, interval=(1.01, 1.4)), speedup_p=0.03)
        for setting in SETTINGS
    ]
    verdict = recommend([*(cell(AR, setting=setting) for setting in SETTINGS), *doubtful])
    assert [choice.arm for choice in verdict.choices] == [tree(8)] * 3


def test_n_too_small_is_no_reason_where_intervals_exist() -> None:
    verdict = recommend([cell(AR), cell(tree(8), 1.05, interval=(0.9, 1.2))])
    assert "n too small" not in verdict.choices[0].reason
    assert "n too small" not in verdict.headline
    assert verdict.warnings == ()


BAD: list[dict[str, object]] = [
    {"state": "invalid"},
    {"state": "failed"},
    {"state": "quarantined"},
    {"state": "running"},
    {"state": "planned"},
    {"grade": "not-lossless"},
    {"grade": "unclassified"},
    {"grade": "baseline"},
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_cell_is_never_recommended_however_fast(bad: dict[str, object]) -> None:
    fast = cell(tree(4), 9.0, **bad)  # type: ignore[arg-type]
    assert not is_candidate(fast)
    assert one(fast, cell(tree(8), 1.5)) == tree(8)
    verdict = recommend([cell(AR), fast])
    assert verdict.arm is None
    assert all(choice.arm == AR for choice in verdict.choices)
    if "grade" not in bad or bad["grade"] != "baseline":
        assert any(warning.startswith("ddtree(4,4) at context 60") for warning in verdict.warnings)


@pytest.mark.parametrize(
    "grade",
    [
        Losslessness("exact", 0, 0),
        Losslessness("exact", 5, 4, bugs=1),
        Losslessness("near-ties", 5, 4, suspects=1),
    ],
)
def test_a_grade_that_contradicts_its_counts_is_no_proof(grade: Losslessness) -> None:
    fast = dataclasses.replace(cell(tree(4), 9.0), losslessness=grade)
    assert one(fast, cell(tree(8), 1.5)) == tree(8)


@pytest.mark.parametrize("speedup", [None, math.nan, math.inf, 0.0, -2.0])
def test_a_speed_that_is_no_number_is_never_recommended(speedup: float | None) -> None:
    fast = dataclasses.replace(cell(tree(4), 9.0), speedup=speedup)
    assert one(fast, cell(tree(8), 1.5)) == tree(8)


def test_without_a_valid_baseline_nothing_is_chosen() -> None:
    for cells in ([cell(AR, state="invalid"), cell(tree(8), 1.8)], [cell(tree(8), 1.8)], []):
        verdict = recommend(cells)
        assert verdict.arm is None
        assert verdict.choices == ()
        assert verdict.headline.startswith("No recommendation")


SETTINGS = ((60, 1), (60, 4), (1024, 1))


def grid(**speeds: tuple[float, float, float]) -> list[CellSummary]:
    arms = {"chain": CHAIN, "t4": tree(4), "t8": tree(8), "t16": tree(16)}
    cells = [cell(AR, setting=setting) for setting in SETTINGS]
    for name, values in speeds.items():
        cells += [
            cell(arms[name], value, setting)
            for value, setting in zip(values, SETTINGS, strict=True)
        ]
    return cells


def test_overall_arm_has_the_best_geometric_mean() -> None:
    verdict = recommend(grid(t4=(1.2, 1.2, 1.2), t8=(2.0, 1.6, 1.25), t16=(2.5, 1.0, 1.2)))
    assert verdict.arm == tree(8)
    assert verdict.speedup == pytest.approx(4 ** (1 / 3))
    assert [choice.arm for choice in verdict.choices] == [tree(16), tree(8), tree(8)]
    assert verdict.headline == (
        "Ship ddtree(8,4): 1.59x the speed of ar (geometric mean over 3 settings; 1.25x to 2.00x)"
        ", all 30 outputs identical to ar's."
    )


def test_overall_ties_go_to_the_smaller() -> None:
    assert recommend(grid(chain=(1.5, 1.5, 1.49), t16=(1.5, 1.5, 1.5))).arm == CHAIN


def test_overall_arm_must_be_good_everywhere() -> None:
    cells = grid(t4=(1.2, 1.2, 1.2), t8=(2.0, 2.0, 2.0))
    for bad in ({"state": "invalid"}, {"losslessness": lossless("not-lossless")}):
        spoilt = [
            dataclasses.replace(c, **bad)  # type: ignore[arg-type]
            if c.arm == tree(8) and c.concurrency == 4
            else c
            for c in cells
        ]
        verdict = recommend(spoilt)
        assert verdict.arm == tree(4)
        assert [choice.arm for choice in verdict.choices] == [tree(8), tree(4), tree(8)]
    missing = [c for c in cells if not (c.arm == tree(8) and c.concurrency == 4)]
    assert recommend(missing).arm == tree(4)


def test_no_overall_arm_but_choices_by_setting() -> None:
    cells = grid(t8=(2.0, 1.5, 1.5))
    cells = [
        dataclasses.replace(c, losslessness=lossless("not-lossless"))
        if c.arm == tree(8) and c.concurrency == 4
        else c
        for c in cells
    ]
    verdict = recommend(cells)
    assert verdict.arm is None
    assert verdict.headline.startswith("Choose by setting")
    assert "2.00x with ddtree(8,4)" in verdict.headline
    assert [choice.arm for choice in verdict.choices] == [tree(8), AR, tree(8)]


def test_overall_arm_that_loses_somewhere_is_named() -> None:
    verdict = recommend(grid(t8=(2.0, 0.9, 1.5)))
    assert verdict.arm == tree(8)
    assert verdict.warnings == (
        "ddtree(8,4) at context 60, concurrency 4: not faster than ar there with confidence "
        "(0.90x)",
    )


def test_an_arm_that_loses_on_the_whole_is_no_overall_arm() -> None:
    verdict = recommend(grid(t8=(1.5, 0.5, 0.9)))
    assert verdict.arm is None
    assert [choice.arm for choice in verdict.choices] == [tree(8), AR, AR]


def test_an_overall_arm_wins_by_its_lower_ends() -> None:
    # By its means it gains 1.41 times, by its intervals' lower ends it may lose.
    cells = [cell(AR, setting=setting) for setting in SETTINGS[:2]]
    cells += [cell(tree(8), 2.0, SETTINGS[0]), cell(tree(8), 1.0, SETTINGS[1], interval=(0.3, 3))]
    verdict = recommend(cells)
    assert verdict.arm is None
    assert [choice.arm for choice in verdict.choices] == [tree(8), AR]
    narrow = [*cells[:3], cell(tree(8), 1.0, SETTINGS[1])]
    assert recommend(narrow).arm == tree(8)
    unknown = [*cells[:3], cell(tree(8), 2.0, SETTINGS[1], interval=None)]
    assert recommend(unknown).arm is None


def test_a_setting_without_a_baseline_leaves_no_overall_arm() -> None:
    cells = [
        dataclasses.replace(c, state="invalid") if c.arm == AR and c.concurrency == 4 else c
        for c in grid(t8=(2.0, 2.0, 2.0))
    ]
    verdict = recommend(cells)
    assert verdict.arm is None
    assert [choice.concurrency for choice in verdict.choices] == [1, 1]
    assert any("concurrency 4: no valid ar cell" in warning for warning in verdict.warnings)


def sampled(*speeds: float) -> list[CellSummary]:
    """A greedy setting where ddtree(8,4) wins by half, and one at 0.7 for the arms given."""
    arms = [AR, tree(4), tree(8)][: len(speeds) + 1]
    cells = [cell(AR), cell(tree(4), 1.2), cell(tree(8), 1.5), cell(AR, temperature=0.7)]
    values = zip(arms[1:], speeds, strict=True)
    return cells + [cell(arm, value, temperature=0.7) for arm, value in values]


def test_each_temperature_gets_a_choice_and_counts_for_the_whole() -> None:
    verdict = recommend(sampled(1.4, 1.1))
    assert [(c.temperature, c.arm) for c in verdict.choices] == [(0.0, tree(8)), (0.7, tree(4))]
    assert verdict.arm == tree(4)
    assert "geometric mean over 2 settings" in verdict.headline
    assert verdict.warnings == ()
    assert recommend(sampled(1.1, 1.4)).arm == tree(8)


def test_a_temperature_counts_like_any_other_setting() -> None:
    # Good when greedy, unmeasured or no better than ar when sampled: no arm for everything.
    assert recommend(sampled()).arm is None
    spoilt = [
        dataclasses.replace(c, losslessness=lossless("not-lossless"))
        if c.temperature and c.arm != AR
        else c
        for c in sampled(1.4, 1.4)
    ]
    verdict = recommend(spoilt)
    assert verdict.arm is None
    assert [choice.arm for choice in verdict.choices] == [tree(8), AR]
    place = "ddtree(8,4) at context 60, concurrency 1, temperature 0.7"
    assert any(w.startswith(f"{place}: NOT lossless") for w in verdict.warnings)


def test_a_temperature_without_a_baseline_is_named() -> None:
    cells = [c for c in sampled(1.4, 1.4) if c.arm != AR or c.temperature == 0]
    verdict = recommend(cells)
    assert [choice.temperature for choice in verdict.choices] == [0.0]
    expected = "context 60, concurrency 1, temperature 0.7: no valid ar cell, so no choice"
    assert expected in verdict.warnings


def test_too_many_near_ties_are_told_beside_the_control() -> None:
    grade = Losslessness(
        "not-lossless",
        *(10, 8),
        suspects=2,
        tokens=400,
        near_tie_tokens=30,
        near_tie_excess=21,
        control_flips=1,
        control_positions=500,
    )
    verdict = recommend([cell(AR), dataclasses.replace(cell(tree(8), 1.5), losslessness=grade)])
    assert verdict.arm is None
    assert verdict.warnings == (
        "ddtree(8,4) at context 60, concurrency 1: NOT lossless, 0 bugs and 2 suspects in 10 "
        "outputs; 30 near-ties in 400 tokens where the control has 1 flips in 500",
    )


def test_near_ties_are_said_in_the_headline() -> None:
    verdict = recommend([cell(AR), cell(tree(8), 1.5, grade="near-ties")])
    assert "9 of 10 outputs identical to ar's, 1 up to near-ties" in verdict.headline


ARMS = [AR, CHAIN, tree(4), tree(8), tree(8, 8), tree(16)]


@st.composite
def cells_at_random(draw: st.DrawFn) -> list[CellSummary]:
    cells = []
    for setting in SETTINGS[: draw(st.integers(1, 3))]:
        for arm in draw(st.lists(st.sampled_from(ARMS), unique=True)):
            speedup = draw(st.none() | st.floats(0, 4) | st.just(math.nan))
            made = cell(
                arm,
                speedup,
                setting,
                state=draw(st.sampled_from(["ok", "ok", "ok", "invalid", "failed", "running"])),
                grade=draw(
                    st.sampled_from(
                        ["baseline"]
                        if arm == AR
                        else ["exact", "near-ties", "not-lossless", "unclassified"]
                    )
                ),
                interval=None,
            )
            low = draw(st.none() | st.floats(0, 4))
            bounds = None if low is None else Interval(low, low + 1)
            p = None if low is None else draw(st.floats(0, 0.1))
            cells.append(dataclasses.replace(made, speedup_interval=bounds, speedup_p=p))
    return cells


def check(cells: list[CellSummary], verdict: Verdict) -> None:
    """What must hold of any verdict, by rules written apart from the code under test."""
    by_place = {(c.context, c.concurrency, c.arm): c for c in cells}
    for choice in verdict.choices:
        chosen = by_place[choice.context, choice.concurrency, choice.arm]
        baseline = by_place[choice.context, choice.concurrency, AR]
        assert chosen.state == "ok"
        assert baseline.state == "ok"
        if choice.arm != AR:
            assert chosen.losslessness.grade in ("exact", "near-ties")
            assert choice.speedup == chosen.speedup
            assert choice.speedup > 1
            assert chosen.speedup_interval is not None
            assert chosen.speedup_interval.low > 1
    assert (verdict.arm is None) == (verdict.speedup is None)
    if verdict.arm is not None:
        assert verdict.arm != AR
        assert verdict.speedup is not None
        assert verdict.speedup > 1
        for context, concurrency in {(c.context, c.concurrency) for c in cells}:
            used = by_place[context, concurrency, verdict.arm]
            assert used.state == "ok"
            assert used.losslessness.grade in ("exact", "near-ties")
            assert used.speedup_interval is not None
            assert by_place[context, concurrency, AR].state == "ok"


@given(cells_at_random())
def test_no_bad_cell_is_ever_recommended(cells: list[CellSummary]) -> None:
    verdict = recommend(cells)
    check(cells, verdict)
    good = [c for c in cells if is_candidate(c)]
    if not good:
        assert verdict.arm is None


@given(cells_at_random(), st.randoms())
def test_the_order_of_cells_does_not_matter(cells: list[CellSummary], rng: object) -> None:
    shuffled = list(cells)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = recommend(cells), recommend(shuffled)
    assert (first.arm, first.choices, first.headline) == (
        second.arm,
        second.choices,
        second.headline,
    )


def test_an_arm_measured_under_another_name_can_be_the_one_for_everything() -> None:
    there = (1024, 1)
    wide, full = Arm("ddtree", 8, 4, 256), Arm("ddtree", 8, 4, "full")
    cells = [cell(AR), cell(AR, setting=there), cell(wide, 1.5), cell(full, 1.6, there)]
    assert recommend(cells).arm is None
    twin = dataclasses.replace(cells[2], arm=full)
    verdict = recommend(cells, [twin])
    assert verdict.arm == full
    # What was measured is what each setting's choice names.
    assert [choice.arm for choice in verdict.choices] == [wide, full]


def test_of_equal_arms_the_smallest_is_named() -> None:
    unsure = [cell(tree(n), 1.5, interval=(0.5, 3.0)) for n in (16, 8, 32)]
    for cells in ([cell(AR), *unsure], [*unsure[::-1], cell(AR)]):
        (choice,) = recommend(cells).choices
        assert choice.arm == AR
        assert "the best is ddtree(8,4) at 1.50x" in choice.reason
