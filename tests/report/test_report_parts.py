"""The page's parts: numbers, heat map, lines, colours."""

import dataclasses
import re
from importlib.resources import files

import pytest
from report_html import read
from report_samples import (
    AR,
    ARMS,
    CHAIN,
    SHIP,
    around,
    cell,
    faulty_run,
    good_run,
    large_run,
    not_lossless,
)

from ddtree.records.arms import Arm
from ddtree.records.summary import Choice, Verdict
from ddtree.report.curves import speed_charts
from ddtree.report.heatmap import Scale, heat_maps
from ddtree.report.numbers import Footnotes, fixed, milliseconds, number, times
from ddtree.report.page import render_report
from ddtree.report.run import arrange
from ddtree.report.series import BASELINE, FIRST, OTHER, assign
from ddtree.report.series import CHAIN as CHAIN_LOOK
from ddtree.report.stages import stage_tables

STYLE = (files("ddtree.report") / "style.css").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1.857, 2, "1.86"),
        (0.004, 2, "<0.01"),
        (-0.004, 2, "-<0.01"),
        (0.0, 2, "0.00"),
        (0.006, 2, "0.01"),
        (12345.678, 1, "12,345.7"),
    ],
)
def test_fixed(value, digits, text):
    assert fixed(value, digits) == text


def test_missing_numbers_carry_a_reason():
    assert number(None, 2, "why").why_missing == "why"
    assert "nan" in number(float("nan"), 2, "why").why_missing
    assert milliseconds(None, 1, "why").text == "–"
    assert milliseconds(0.0815, 1, "why").text == "81.5"
    assert times(1.5, None, "why").note == "n too small"


def test_footnotes_name_each_reason_once():
    feet = Footnotes()
    marks = [feet.mark(str(n)) for n in range(28)]
    assert marks[:2] == ["a", "b"]
    assert marks[25:] == ["z", "aa", "ab"]
    assert feet.mark("0") == "a"
    assert len(feet.items()) == 28


def test_scale_is_full_at_its_ends_and_empty_at_one():
    scale = Scale(low=0.5, high=4.0)
    assert [scale.strength(v) for v in (0.5, 1.0, 2.0, 4.0)] == [100, 0, 50, 100]


def test_a_map_per_setting_and_window_with_its_own_chain():
    maps = heat_maps(arrange(large_run())).maps
    assert len(maps) == 2 * 2
    assert [row.header for row in maps[0].references] == ["ar", "chain w=256"]
    assert [row.header for row in maps[1].references] == ["ar", "chain w=full"]
    assert maps[0].budgets == (4, 8, 16, 32, 64)
    assert [row.header for row in maps[0].rows] == ["1", "2", "4", "8"]


def test_squares_hold_the_right_cells():
    run = arrange(good_run())
    first = heat_maps(run).maps[0]
    texts = [[square.text for square in row.cells] for row in first.rows]
    here = {c.arm: c for c in run.at(run.settings[0])}
    expected = [
        [f"{here[Arm('ddtree', budget=b, topk=k)].speedup:.2f}×" for b in (8, 16)] for k in (2, 4)
    ]
    assert texts == expected


def test_a_slower_cell_is_a_loss():
    slow = tuple(
        cell(a, 900, 1, speedup=0.8, speedup_interval=around(0.8, 0.02))
        if a == SHIP
        else cell(a, 900, 1)
        for a in ARMS
    )
    squares = [
        square
        for row in heat_maps(arrange(dataclasses.replace(good_run(), cells=slow))).maps[0].rows
        for square in row.cells
    ]
    assert [s.kind for s in squares if s.text == "0.80×"] == ["loss"]


@pytest.mark.parametrize("speedup", [0.5, 9.0])
def test_without_an_interval_a_square_is_neither_win_nor_loss(speedup):
    lone = cell(SHIP, 900, 1, speedup=speedup, speedup_interval=None)
    run = dataclasses.replace(good_run(), cells=(cell(AR, 900, 1), lone))
    ((square,),) = [row.cells for row in heat_maps(arrange(run)).maps[0].rows]
    assert (square.kind, square.note) == ("even", "n too small")


def test_a_barred_cell_does_not_stretch_the_scale():
    assert heat_maps(arrange(faulty_run())).scale.high < 3


def test_lines_break_at_a_barred_cell():
    counts = {}
    for middle in ({}, {"losslessness": not_lossless()}):
        cells = [cell(AR, 900, c) for c in (1, 4, 8)]
        cells += [cell(SHIP, 900, 1), cell(SHIP, 900, 4, **middle), cell(SHIP, 900, 8)]
        verdict = Verdict(None, "None.", None, ())
        run = arrange(dataclasses.replace(good_run(), cells=tuple(cells), verdict=verdict))
        looks = assign(run)
        colour = f"var(--series-{looks[SHIP].colour})"
        svg = read(speed_charts(run, looks).charts[0].svg)
        line = [p for p in svg.all("path") if f"stroke: {colour}" in p.attributes.get("style", "")]
        counts[bool(middle)] = (
            line[0].attributes["d"].count("M"),
            line[0].attributes["d"].count("L"),
        )
    assert counts == {False: (1, 2), True: (2, 0)}


def test_the_arm_to_ship_gets_the_first_colour_and_a_choice_comes_next():
    run = large_run()
    looks = assign(arrange(run))
    assert looks[run.verdict.arm].colour == FIRST
    assert looks[AR].colour == BASELINE
    assert sum(look.colour == CHAIN_LOOK for look in looks.values()) == 1
    named = [look.colour for look in looks.values() if look.colour != OTHER]
    assert len(named) == len(set(named))
    other = Arm("ddtree", budget=64, topk=1, draft_window="full")
    verdict = dataclasses.replace(run.verdict, choices=(Choice(1024, 1, 0.0, other, 1.2, "."),))
    assert assign(arrange(dataclasses.replace(run, verdict=verdict)))[other].colour == FIRST + 1


def test_bars_share_a_scale_and_keep_unknown_stages():
    odd = cell(SHIP, 900, 1, stage_seconds={"verify": 0.03, "sample": 0.01}, round_s=0.04)
    run = dataclasses.replace(
        good_run(),
        cells=(odd, cell(CHAIN, 900, 1, stage_seconds={"verify": 0.02}, round_s=0.02)),
        verdict=Verdict(None, "None.", None, ()),
    )
    tables = stage_tables(arrange(run))
    assert tables.stages == ("verify", "sample")
    chain, tree = tables.tables[0].rows
    assert sum(part.share for part in tree.segments) == pytest.approx(100)
    assert sum(part.share for part in chain.segments) == pytest.approx(50)
    assert [shown.text for shown in chain.stages_ms] == ["20.00", "–"]
    assert tree.per_token_ms.text == f"{40 / odd.acceptance_length:.2f}"


def palettes() -> dict[str, dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks)
    assert light.keys() == dark.keys()
    return {"light": light, "dark": dark}


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio of two #rrggbb colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_pairs():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_readable(theme):
    colour = palettes()[theme]
    for name in ("ink", "ink-soft", "accent", "good", "bad", "warn"):
        assert contrast(colour[name], colour["page"]) >= 4.5, name
    for ground in ("heat-mid", "heat-win", "heat-loss"):
        assert contrast(colour["ink"], colour[ground]) >= 4.5, ground
    for ground in ("cross-ar", "cross-chain", "cross-ddtree", "cross-tie"):
        assert contrast(colour["ink"], colour[ground]) >= 4.5, ground
    assert contrast(colour["chosen"], colour["page"]) >= 4.5
    for number_ in range(8):
        assert contrast(colour[f"series-{number_}"], colour["page"]) >= 3, number_


def test_every_named_colour_is_defined_and_no_other_is_used():
    page = render_report(large_run())
    used = set(re.findall(r"var\(--([\w-]+)\)", page)) - {"s"}
    assert used <= set(re.findall(r"--([\w-]+):", STYLE))
    body = page.partition("</style>")[2]
    assert re.findall(r"(?:fill|stroke|color)\s*[:=]\s*\"?(?:#|rgb)", body) == []
