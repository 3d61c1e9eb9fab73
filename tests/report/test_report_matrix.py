"""The page's parts for whole matrices: who wins where, fronts, windows, causes, choosing."""

import json
from dataclasses import replace

import pytest
from report_html import columns, external_references, read, rows
from report_matrices import FLAG, chosen_run, window_run
from report_pages import page_of
from report_samples import (
    AR,
    CHAIN,
    SHIP,
    TREES,
    around,
    cell,
    faulty_run,
    good_run,
    not_lossless,
    one_cell_run,
    spread,
)

from ddtree.bench.recommend import TIE_BAND as RECOMMENDED_BAND
from ddtree.records.arms import Arm
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary, Interval, TreeUse, Verdict
from ddtree.records.summary_json import read_summary
from ddtree.report.crossover import MARKS, TIE_BAND, Square, cross_maps
from ddtree.report.curves import speed_charts
from ddtree.report.embed import FOLDED, page_data
from ddtree.report.grid import detail_note, detailed
from ddtree.report.limits import CHARTS, DETAIL, left_out
from ddtree.report.limits import spread as spread_over
from ddtree.report.nodes import node_charts
from ddtree.report.page import render_report
from ddtree.report.pareto import front_of, pareto_fronts
from ddtree.report.run import arrange
from ddtree.report.series import OTHER, assign, legend
from ddtree.report.windows import window_charts

WIDE = {"speedup_vs_chain_interval": None}


def ratios(arm: Arm, speedup: float, share: float, **changes) -> CellSummary:
    """A cell at context 900 and concurrency 8 with this speed-up and width of its interval."""
    interval = around(speedup, share)
    return cell(arm, 900, 8, speedup=speedup, speedup_interval=interval, **changes)


def crossed(*cells: CellSummary) -> Square:
    """The square that these cells give, beside a valid ar of another setting."""
    everything = (cell(AR, 256, 1), cell(AR, 900, 8), *cells)
    verdict = Verdict(None, "None.", None, ())
    (found,) = cross_maps(arrange(replace(good_run(), cells=everything, verdict=verdict)))
    (square,) = [s for row in found.rows if row.context == 900 for s in row.squares if s]
    return square


def embedded(page: str) -> dict:
    """The page's data as it stands in it."""
    (data,) = [e.text for e in read(page).all("script") if e.attributes.get("id") == "data"]
    return json.loads(data)


def unfolded(data: dict) -> dict:
    """Folded tables as lists of objects, by the rule that `ddtree.report.embed` states."""
    for name in FOLDED:
        table = data[name]
        data[name] = [_object(dict(zip(table["columns"], row, strict=True)), table["columns"])
                      for row in table["rows"]]  # fmt: skip
    return data


def _object(values: dict, columns: list[str]) -> dict:
    whole = {column: values[column] for column in columns if "." not in column}
    for name in {column.split(".")[0] for column in columns if "." in column}:
        inner = {c.split(".")[1]: values[c] for c in columns if c.split(".")[0] == name}
        whole[name] = None if all(value is None for value in inner.values()) else inner
    return whole


def test_the_tie_band_is_that_of_the_recommendation():
    assert TIE_BAND == RECOMMENDED_BAND


@pytest.mark.parametrize(
    ("chain", "tree", "kind", "note"),
    [
        (ratios(CHAIN, 1.5, 0.01), ratios(SHIP, 1.8, 0.01, **WIDE), "ddtree", ""),
        (ratios(CHAIN, 1.8, 0.01), ratios(SHIP, 1.5, 0.01, **WIDE), "chain", ""),
        (ratios(CHAIN, 0.8, 0.01), ratios(SHIP, 0.9, 0.01, **WIDE), "ar", "next 0.90×"),
        (ratios(CHAIN, 1.78, 0.001), ratios(SHIP, 1.8, 0.001), "tie", "ddtree = chain"),
        (ratios(CHAIN, 1.6, 0.1), ratios(SHIP, 1.8, 0.1, **WIDE), "tie", "ddtree = chain"),
        (ratios(CHAIN, 0.7, 0.01), ratios(SHIP, 1.05, 0.1, **WIDE), "tie", "ar = ddtree"),
        (ratios(CHAIN, 0.7, 0.01), replace(ratios(SHIP, 9.0, 0.1), speedup_interval=None), "open",
         "n too small"),
    ],
)  # fmt: skip
def test_a_square_is_won_tied_or_left_open(chain, tree, kind, note):
    square = crossed(chain, tree)
    said = " = ".join(sorted(square.note.split(" = "))) if "=" in note else square.note
    assert (square.kind, said) == (kind, " = ".join(sorted(note.split(" = "))))


def test_a_paired_interval_tells_apart_what_overlaps_alone():
    chain, tree = ratios(CHAIN, 1.6, 0.1), ratios(SHIP, 1.8, 0.1)
    assert crossed(chain, replace(tree, speedup_vs_chain_interval=Interval(1.1, 1.15))).kind == (
        "ddtree"
    )
    assert crossed(chain, replace(tree, speedup_vs_chain_interval=Interval(0.9, 1.2))).kind == "tie"


@pytest.mark.parametrize(
    "fault", [{"state": "invalid"}, {"losslessness": not_lossless()}, {"state": "running"}]
)
def test_a_cell_that_cannot_count_wins_no_square(fault):
    chain = ratios(CHAIN, 1.5, 0.01)
    square = crossed(chain, ratios(SHIP, 9.87, 0.01, **fault))
    assert (square.kind, square.arm, square.speedup) == ("chain", "chain", "1.50×")
    alone = crossed(ratios(SHIP, 9.87, 0.01, **fault))
    assert (alone.kind, alone.note, alone.speedup) == ("none", "no valid arm", "")


def test_without_a_valid_baseline_no_square_is_won():
    verdict = Verdict(None, "None.", None, ())
    cells = (cell(AR, 256, 1), cell(AR, 900, 8, state="invalid"), ratios(SHIP, 1.8, 0.01))
    (found,) = cross_maps(arrange(replace(good_run(), cells=cells, verdict=verdict)))
    assert [s.note for row in found.rows for s in row.squares if s] == [
        "no valid arm",
        "no valid ar",
    ]


def test_there_is_a_map_for_any_window_and_for_each():
    maps = cross_maps(arrange(window_run()))
    assert [m.title for m in maps] == [
        "Any draft window",
        "A draft window of 64 tokens",
        "A draft window of 256 tokens",
        "The full draft window",
    ]
    assert [m.basis for m in maps] == [f"From {n} speculative cells." for n in (36, 12, 12, 12)]
    narrow = [s.arm for row in maps[1].rows for s in row.squares if s]
    assert narrow == ["ddtree(8,4) w=64"] * 4


def test_squares_say_in_letters_what_they_say_in_colours():
    reader = read(page_of(good_run))
    squares = reader.all("td", "crossover", "cross")
    kinds = [(e.classes - {"heat", "cross"}).pop() for e in squares]
    assert len(squares) == 4
    assert [e.text.strip()[0] for e in squares] == [MARKS[kind][0] for kind in kinds]
    legend = [e.text for e in reader.all("span", "crossover", "swatch")]
    assert legend == [mark for mark, _ in MARKS.values()]
    assert len(set(legend)) == len(legend)


def test_one_setting_has_no_map_and_the_sections_stay_numbered():
    reader = read(page_of(one_cell_run))
    headings = [h.text.split()[0] for h in reader.all("h2")]
    assert headings == [str(n) for n in range(1, len(headings) + 1)]
    assert "crossover" not in [e.attributes["id"] for e in reader.all("section")]


def test_the_front_of_known_points():
    points = [(1.0, 10.0), (2.0, 8.0), (2.0, 9.0), (1.5, 8.5), (3.0, 1.0), (3.0, 1.0), (0.5, 10.0)]
    assert front_of(points) == [0, 2, 4]


def test_fronts_leave_out_and_count_what_cannot_count():
    run = arrange(faulty_run())
    fronts = {f.chart.title: f for f in pareto_fronts(run, assign(run)).fronts}
    assert [(f.drawn, f.barred) for f in fronts.values()] == [(10, 1), (9, 3)]
    assert not any("ddtree(16,4) at concurrency 8" in p for p in fronts["Context 900"].points)
    text = read(page_of(faulty_run)).text("throughput")
    assert "9 points; not drawn, of cells that can't count: 3" in text


def test_a_fast_cell_that_is_not_lossless_moves_no_front():
    run = good_run()
    fast = {"decode_tokens_per_s": 9999.0, "system_tokens_per_s": 9999.0}
    spoilt = tuple(
        replace(c, **fast, losslessness=not_lossless()) if c.arm == SHIP else c for c in run.cells
    )
    fronts = pareto_fronts(arrange(replace(run, cells=spoilt)), assign(arrange(run))).fronts
    assert not any("9,999" in point for front in fronts for point in front.points)
    clean = tuple(replace(c, **fast) if c.arm == SHIP else c for c in run.cells)
    fronts = pareto_fronts(arrange(replace(run, cells=clean)), assign(arrange(run))).fronts
    assert all("9,999" in front.points[0] for front in fronts)


def test_windows_are_drawn_per_context_and_only_where_they_vary():
    run = arrange(window_run())
    found = window_charts(run, assign(run))
    assert [entry.label for entry in found.legend] == ["context 60", "context 4096"]
    assert len(found.charts.charts) == 2 * 2 * 2
    assert found.charts.not_drawn.startswith("8 of 12 charts drawn")
    first = read(found.charts.charts[0].svg).all("svg")[0].attributes["aria-label"]
    here = next(c for c in run.summary.cells if c.arm == Arm("chain", draft_window="full"))
    assert f"{here.acceptance_length:.2f} at window full" in first
    plain = arrange(good_run())
    assert window_charts(plain, assign(plain)).charts.charts == ()


def test_the_speed_up_is_taken_apart_into_numbers_that_multiply():
    run = good_run()
    odd = tuple(
        replace(c, acceptance_gain=3.0, round_cost=1.5, speedup=1.8) if c.arm == SHIP else c
        for c in run.cells
    )
    table = rows(read(render_report(replace(run, cells=odd))), "causes")
    assert table["Context 900, concurrency 8", SHIP.label][2:] == ["3.00", "1.50", "2.00", "0.90"]
    assert all(arm != "ar" for _, arm in table)


def test_only_cells_that_count_are_taken_apart_or_show_their_trees():
    reader = read(page_of(faulty_run))
    barred = {
        ("Context 900, concurrency 8", "ddtree(16,4)"),
        ("Context 900, concurrency 8", "ddtree(8,2)"),
        ("Context 900, concurrency 1", "ddtree(16,2)"),
        ("Context 256, concurrency 8", "ddtree(8,4)"),
    }
    for table in ("causes", "tree-use"):
        found = rows(reader, table)
        assert not barred & found.keys()
        assert len(found) == 15


def test_tree_use_shows_ranks_rescue_and_what_half_the_nodes_lose():
    use = TreeUse((0.5, 0.2, 0.1, 0.15, 0.05), 0.25, 1.75, 0.125, (0.8, 0.4, 0.2, 0.1))
    run = replace(one_cell_run(), cells=(cell(SHIP, 900, 1, tree=use, acceptance_length=2.5),))
    reader = read(render_report(run))
    (row,) = rows(reader, "tree-use").values()
    assert row == [
        "40", "2.50", "1.75", "25.0 %", "12.5 %", "50.0 %", "20.0 %", "10.0 %", "20.0 %", "0.30",
    ]  # fmt: skip
    chart = node_charts(arrange(run), assign(arrange(run))).charts[0].svg
    label = read(chart).all("svg")[0].attributes["aria-label"]
    assert label.endswith(
        "1.00 at node 0, 1.80 at node 1, 2.20 at node 2, 2.40 at node 3, 2.50 at node 4."
    )


def test_predictions_stand_beside_what_was_measured():
    reader = read(page_of(chosen_run))
    table = rows(reader, "predictions")
    here = "Context 900, concurrency 8"
    assert len(table) == 5
    assert table[here, SHIP.label][2] == "+5.0"
    assert table[here, "ddtree(32,4)"][7:] == ["no", "predicted to be slower than ar"]
    assert all(text.startswith("–") for text in table[here, "ddtree(32,4)"][1:3])
    text = reader.text("selection")
    assert "4 of them beside a valid measurement: the median error of the speed-up is 5.0 %" in text


def test_a_prediction_is_held_against_no_cell_that_cannot_count():
    run = chosen_run()
    bad = tuple(
        replace(c, losslessness=not_lossless(), speedup=9.87) if c.arm == SHIP else c
        for c in run.cells
    )
    reader = read(render_report(replace(run, cells=bad)))
    assert rows(reader, "predictions")["Context 900, concurrency 8", SHIP.label][2] != "+5.0"
    assert "3 of them beside a valid measurement" in reader.text("selection")
    assert "9.87" not in reader.text("selection")


def test_rungs_name_their_arms_fastest_first_and_which_went_on():
    table = rows(read(page_of(chosen_run)), "rungs")
    told = [(arm, row[3], row[5]) for (_, arm), row in table.items()]
    assert [(place[0], went) for _, place, went in told] == [
        ("1", "yes"), ("2", "yes"), ("3", "no"), ("4", "no"), ("–", "no"),
    ]  # fmt: skip
    assert [arm for arm, _, _ in told][:2] == ["ddtree(8,4)", "ddtree(16,2)"]


def test_screened_cells_rank_nowhere():
    run, reader = chosen_run(), read(page_of(chosen_run))
    assert len(rows(reader, "screened")) == len(run.screened)
    assert "for choosing only" in reader.text("selection")
    for section in [e.attributes["id"] for e in reader.all("section")]:
        assert ("8.88" in reader.text(section)) == (section == "selection"), section
    assert reader.all("span", "selection", "win") == []
    drawn = "".join(e.attributes["aria-label"] for e in reader.all("svg", css="plot"))
    assert "8.88" not in drawn


def test_drift_counts_the_sentinels_beyond_its_band():
    reader = read(page_of(chosen_run))
    assert (
        "6 measurements of ar at one setting: 0.958 to 1.011 times the first, 1 of them further "
        "than 3 % from it." in reader.text("selection")
    )
    drift = reader.all("svg", "selection", "plot")[-1].attributes["aria-label"]
    assert drift.startswith("1.000 after 0 blocks; 0.996 after 3 blocks")


def test_a_run_that_chose_nothing_has_no_such_section():
    assert "selection" not in [e.attributes["id"] for e in read(
        page_of(good_run)).all("section")]  # fmt: skip


def test_quantiles_are_numbers_only_where_so_many_requests_bound_them():
    cells = (cell(SHIP, 900, 1), cell(CHAIN, 900, 1, ttft=spread(0.1, 300)))
    reader = read(render_report(replace(one_cell_run(), cells=cells)))
    table = rows(reader, "quantiles")
    here = "Context 900, concurrency 1"
    assert [text[0] for text in table[here, SHIP.label][4:6]] == ["–", "–"]
    assert table[here, "chain"][:6] == ["300", "90.0", "100.0", "120.0", "140.0", "170.0"]
    reasons = {e.attributes["title"] for e in reader.all("span", "cells", "none")}
    assert "n too small" in reasons
    assert columns(reader, "quantiles")[1] == "First token, msp10"


def test_flags_stand_beside_what_was_observed():
    table = rows(read(page_of(chosen_run)), "observed")
    flagged = {key: row for key, row in table.items() if row[-1]}
    assert [(key, row[-1]) for key, row in flagged.items()] == [
        (("Context 900, concurrency 8", SHIP.label), FLAG)
    ]
    assert flagged["Context 900, concurrency 8", SHIP.label][:4] == [
        "7.84", "1.10", "0", "the server",
    ]  # fmt: skip


def test_a_guessed_acceptance_is_called_an_estimate():
    guessed = cell(SHIP, 900, 1, acceptance_source="estimate")
    reader = read(render_report(replace(one_cell_run(), cells=(guessed,))))
    (row,) = rows(reader, "all-cells").values()
    assert row[9].endswith("estimate")


def test_open_loops_are_named_and_kept_apart():
    run = good_run()
    open_ = tuple(replace(c, rate=2.5) for c in run.cells)
    reader = read(render_report(replace(run, cells=(*run.cells, *open_))))
    table = rows(reader, "all-cells")
    assert ("Context 900, concurrency 8, requests/s 2.5", "chain") in table
    assert ("Context 900, concurrency 8, requests/s closed", "chain") in table
    titles = [e.text for e in reader.all("figcaption", "throughput")]
    assert "Context 900, speed-up, 2.5 requests/s" in titles
    assert "Context 900, speed-up" in titles


def test_the_data_in_the_page_is_the_summary():
    run = chosen_run()
    read_back = read_summary(json.dumps(unfolded(embedded(page_of(chosen_run)))))
    assert [c.place for c in read_back.cells] == [c.place for c in run.cells]
    assert [c.place for c in read_back.screened] == [c.place for c in run.screened]
    assert [p.arm for p in read_back.predictions] == [p.arm for p in run.predictions]
    assert read_back.verdict.headline == run.verdict.headline
    assert [c.arm for c in read_back.verdict.choices] == [c.arm for c in run.verdict.choices]
    assert read_back.spec == run.spec
    for mine, theirs in zip(run.cells, read_back.cells, strict=True):
        assert theirs.losslessness == mine.losslessness
        assert theirs.flags == mine.flags
        assert theirs.tpot_s == pytest.approx(mine.tpot_s, rel=1e-5)
        assert (theirs.speedup_interval is None) == (mine.speedup_interval is None)
        assert theirs.stage_seconds == pytest.approx(mine.stage_seconds, rel=1e-5)
        if mine.tree is not None:
            assert theirs.tree.gain_by_node == pytest.approx(mine.tree.gain_by_node, rel=1e-5)
    assert [s.at for s in read_back.sentinels] == [s.at for s in run.sentinels]


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", "]]>&amp;\u2028", "\\u003c"]
)
def test_no_text_ends_the_data_early(text):
    run = replace(one_cell_run(), title=text, spec={text: text})
    page = render_report(run)
    reader = read(page)
    assert external_references(page) == []
    assert reader.faults == []
    assert embedded(page)["title"] == text


def test_the_data_holds_only_numbers_that_are_numbers():
    run = replace(one_cell_run(), cells=(cell(SHIP, 900, 1, ttft_s=float("nan")),))

    def refuse(name):
        raise AssertionError(name)

    data = unfolded(json.loads(page_data(run), parse_constant=refuse))
    assert data["cells"][0]["ttft_s"] is None


def test_a_spread_keeps_both_ends_and_says_what_it_leaves_out():
    assert spread_over(range(5), 5) == (0, 1, 2, 3, 4)
    few = spread_over(range(100))
    assert (few[0], few[-1], len(set(few))) == (0, 99, CHARTS)
    assert left_out(5, 5, "chart") == ""
    assert left_out(12, 100, "chart").startswith("12 of 100 charts drawn")


def test_a_large_run_keeps_each_setting_s_fastest_in_its_details():
    arms = [AR, CHAIN, *(Arm("ddtree", b, 4) for b in range(1, DETAIL // 3))]
    cells = [cell(arm, context, 1) for context in (256, 512, 900, 1024) for arm in arms]
    best = max((c for c in cells if c.context == 900 and c.arm != AR), key=lambda c: c.speedup)
    cells = [
        replace(c, losslessness=not_lossless(), speedup=9.87)
        if (c.context, c.arm) == (512, best.arm)
        else c
        for c in cells
    ]
    run = arrange(replace(good_run(), cells=tuple(cells), verdict=Verdict(None, "None.", None, ())))
    kept = detailed(run)
    assert len(kept) == DETAIL
    assert {(c.context, c.arm) for c in kept} >= {(x, AR) for x in (256, 512, 900, 1024)}
    assert best in kept
    assert 9.87 not in [c.speedup for c in kept]
    assert f"Of {len(cells):,} cells" in detail_note(run)
    assert detail_note(arrange(good_run())) == ""
    looks = assign(run)
    assert not any(look.shown for look in looks.values() if look.colour == OTHER)
    assert legend(looks)[-1].label.endswith("other arms, not drawn as lines")
    drawn = read(speed_charts(run, looks).charts[0].svg).all("svg")[0].attributes["aria-label"]
    assert drawn.count(";") + 1 <= 8


def test_more_settings_than_charts_are_drawn_are_counted():
    cells = tuple(cell(arm, 900, c) for c in range(1, CHARTS + 8) for arm in (AR, CHAIN, TREES[0]))
    verdict = Verdict(None, "None.", None, ())
    reader = read(render_report(replace(good_run(), cells=cells, controls=(), verdict=verdict)))
    total = CHARTS + 7
    said = f"{CHARTS} of {total} charts drawn"
    assert reader.text("acceptance").count(said) == 2
    assert f"{CHARTS} of {total} settings drawn" in reader.text("round")
    settings = {setting for setting, _ in rows(reader, "all-cells")}
    assert settings == {f"Context 900, concurrency {c}" for c in range(1, total + 1)}
    assert Setting(900, total).name in reader.text("speedup").replace("Context", "context")
