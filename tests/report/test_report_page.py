"""The page as a whole: self-contained, escaped, complete, and never a win that isn't one."""

import dataclasses
import re
from pathlib import Path

import pytest
from report_html import external_references, read, rows
from report_pages import page_of
from report_samples import (
    AR,
    ARMS,
    CHAIN,
    SHIP,
    TREES,
    cell,
    faulty_run,
    good_run,
    large_run,
    no_verdict_run,
    not_lossless,
    one_cell_run,
    sampled_run,
)

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.summary import Choice, Interval, Losslessness, RunSummary, Verdict
from ddtree.records.summary_json import read_summary
from ddtree.report.page import render_report, write_report

RUNS = (good_run, sampled_run, faulty_run, no_verdict_run, one_cell_run)
HOSTILE = (
    "</style></title><script>alert(1)</script>",
    "<img src=http://evil.example/x.png onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "{{ 7 * 7 }}{% raw %}",
    "@import url(//evil.example/x.css); $\\frac{1}{0}$ ]]> &amp;",
    "x" * 400,
)


def empty_run() -> RunSummary:
    verdict = Verdict(None, "The run holds no cell.", None, ())
    return dataclasses.replace(good_run(), cells=(), controls=(), verdict=verdict)


@pytest.mark.parametrize("make", [*RUNS, empty_run])
def test_page_is_well_formed_and_self_contained(make):
    page = page_of(make)
    reader = read(page)
    assert reader.faults == []
    assert external_references(page) == []
    assert not re.search(r"https?:|[\"'(]//", page)
    ids = [e.attributes["id"] for e in reader.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    targets = {e.attributes["href"] for e in reader.elements if "href" in e.attributes}
    assert {t[1:] for t in targets if t.startswith("#")} <= set(ids)


@pytest.mark.parametrize(
    "planted",
    [
        "<img src='//cdn.example/x.png'>",
        "<script>0</script>",
        "<link rel=stylesheet href=style.css>",
        "<style>@import 'x.css';</style>",
        "<p style='background: url(x.png)'></p>",
        "<use href='other.svg#a'></use>",
        "<meta http-equiv=refresh content='0;url=x'>",
    ],
)
def test_the_reference_check_sees_a_planted_reference(planted):
    assert external_references(page_of(one_cell_run).replace("</main>", planted + "</main>"))


def test_sections_stand_in_order_under_one_heading_each():
    reader = read(page_of(good_run))
    sections = [e.attributes["id"] for e in reader.all("section")]
    assert sections == [
        "verdict",
        "crossover",
        "speedup",
        "throughput",
        "acceptance",
        "round",
        "losslessness",
        "control",
        "cells",
        "provenance",
    ]
    assert len(reader.all("h1")) == 1
    for number, section in enumerate(sections, 1):
        headings = reader.all("h2", section)
        assert [h.text.split()[0] for h in headings] == [str(number)]


@pytest.mark.parametrize("make", RUNS)
def test_every_header_has_a_scope_and_every_picture_a_text(make):
    reader = read(page_of(make))
    assert [e for e in reader.all("th") if not e.attributes.get("scope")] == []
    pictures = [e for e in reader.elements if e.attributes.get("role") == "img"]
    assert pictures
    assert [e for e in pictures if len(e.attributes.get("aria-label", "")) < 10] == []
    drawings = [e for e in reader.all("svg") if "plot" not in e.classes]
    assert [e for e in drawings if e.attributes.get("aria-hidden") != "true"] == []


def test_each_cell_shows_its_numbers():
    run = good_run()
    table = rows(read(render_report(run)), "all-cells")
    assert len(table) == len(run.cells)
    for found in run.cells:
        row = table[f"Context {found.context}, concurrency {found.concurrency}", found.arm.label]
        assert row[:2] == ["ok", "40"]
        assert row[5] == f"{found.decode_tokens_per_s:,.1f}"
        assert row[6] == f"{found.system_tokens_per_s:,.1f}"
        assert row[7] == f"{1e3 * found.ttft_s:,.1f}"
        assert row[8] == f"{1e3 * found.tpot_s:,.2f}"
        assert row[10] == f"{1e3 * found.round_s:,.2f}"
        if found.arm == AR:
            continue
        low, high = found.speedup_interval.low, found.speedup_interval.high
        assert row[2] == f"{found.speedup:.2f}×{low:.2f}–{high:.2f}"
        low, high = found.end_to_end_interval.low, found.end_to_end_interval.high
        assert row[4] == f"{found.end_to_end_speedup:.2f}×{low:.2f}–{high:.2f}"
        assert row[9] == f"{found.acceptance_length:.2f}"


def test_each_round_and_grade_shows_its_numbers():
    run = good_run()
    reader = read(render_report(run))
    grades = rows(reader, "grades")
    for found in run.cells:
        grade = found.losslessness
        row = grades[f"Context {found.context}, concurrency {found.concurrency}", found.arm.label]
        assert row[0] == grade.grade
        counts = (grade.outputs, grade.identical, grade.near_ties, grade.suspects, grade.bugs)
        assert row[1:6] == [str(n) for n in counts]
        for seconds in found.stage_seconds.values():
            assert f"{1e3 * seconds:,.2f}" in reader.text("round")
    assert "9 of 5,120" in grades["Context 900, concurrency 8", "chain"]
    for control in run.controls:
        assert f"{control.ratio:.3f}" in reader.text("control")


def test_verdict_comes_first_with_its_numbers_and_reasons():
    run = good_run()
    text = read(render_report(run)).text("verdict")
    assert run.verdict.headline in text
    assert "1.90×" in text
    assert "ddtree(8,4)" in text
    for choice in run.verdict.choices:
        assert f"{choice.speedup:.2f}×" in text
        assert choice.reason in text
    assert run.verdict.warnings[0] in text
    assert "24 of 24 cells valid" in text


def test_faults_are_named_in_the_verdict():
    text = read(page_of(faulty_run)).text("verdict")
    assert "other processes took 23 % CPU" in text
    assert "the server broke off" in text
    assert "not lossless: 2 bugs, 1 suspect" in text
    assert "context 256, concurrency 1: 0.931" in text
    assert "40 failed" in text


def test_no_verdict_says_so_and_why():
    reader = read(page_of(no_verdict_run))
    text = reader.text("verdict")
    assert "Nothing to ship: no arm is faster than ar." in text
    assert "0.83× (0.81–0.85), no gain" in text
    assert reader.all("div", "verdict", "ship") == []
    assert reader.all("td", "speedup", "win") == []


def test_barred_cells_are_hatched_and_explained():
    reader = read(page_of(faulty_run))
    hatched = [e.text.strip() for e in reader.all("td", "speedup", "void")]
    assert sorted(hatched) == ["failed", "invalid", "not lossless", "unclassified"]
    assert "invalid: other processes took 23 % CPU" in reader.text("speedup")
    assert "9.87" not in reader.text("speedup")
    assert "9.87" not in reader.text("verdict")
    assert "not planned" in reader.text("speedup")
    row = rows(reader, "all-cells")["Context 900, concurrency 8", "ddtree(16,4)"]
    assert row[0] == "not lossless2 bugs, 1 suspect"
    assert row[2] == "9.87×does not count"


@pytest.mark.parametrize(
    ("state", "grade"),
    [("ok", grade) for grade in ("exact", "near-ties", "not-lossless", "unclassified")]
    + [(state, "exact") for state in ("invalid", "failed", "quarantined", "planned", "running")],
)
def test_only_a_valid_lossless_cell_is_a_win_or_shipped(state, grade):
    best = cell(
        SHIP,
        900,
        1,
        state=state,
        speedup=9.87,
        speedup_interval=Interval(9.8, 9.9),
        losslessness=Losslessness(grade, 40, 38),
    )
    verdict = Verdict(SHIP, "Ship it.", 9.87, (Choice(900, 1, 0.0, SHIP, 9.87, "Fastest."),))
    run = dataclasses.replace(
        good_run(), cells=(cell(AR, 900, 1), cell(CHAIN, 900, 1), best), verdict=verdict
    )
    reader = read(render_report(run))
    fit = state == "ok" and grade in ("exact", "near-ties")
    wins = [e for e in reader.all("td", "speedup", "win") if "9.87" in e.text]
    chosen = reader.all("td", "speedup", "chosen")
    win_rows = reader.all("span", "cells", "win")
    win_rows = [e for e in win_rows if "9.87" in e.text]
    shipped = reader.all("div", "verdict", "ship")
    assert [len(wins), len(chosen), len(win_rows), len(shipped)] == [int(fit)] * 4
    text = reader.text("verdict")
    assert ("Ship it." in text) == fit
    assert ("No arm is recommended: the run names ddtree(8,4), but" in text) == (not fit)
    assert ("was named here, but" in text) == (not fit)


@pytest.mark.parametrize("fit", [True, False])
def test_sampled_cells_are_judged_like_any_other(fit):
    run = sampled_run()
    if not fit:
        open_ = Losslessness("unclassified", 40, 3)
        cells = (
            dataclasses.replace(c, losslessness=open_) if c.temperature and c.arm != AR else c
            for c in run.cells
        )
        run = dataclasses.replace(run, cells=tuple(cells))
    reader = read(render_report(run))
    assert len(reader.all("div", "verdict", "ship")) == int(fit)
    assert len(reader.all("td", "speedup", "chosen")) == (8 if fit else 4)
    assert reader.text("verdict").count("was named here, but") == (0 if fit else 4)


def test_the_temperature_is_named_wherever_settings_are_listed():
    run = sampled_run()
    off = dataclasses.replace(run.controls[0], ratio=0.9, temperature=0.7)
    reader = read(render_report(dataclasses.replace(run, controls=(off,))))
    for section in ("verdict", "control"):
        header = [e.text for e in reader.all("th", section)]
        assert header.count("Temperature") == 1, section
    settings = [
        [e.text for e in reader.all("td", "verdict")][i : i + 3] for i in range(0, 8 * 9, 9)
    ]
    assert [s[2] for s in settings] == ["0", "0.7"] * 4
    text = reader.text("verdict")
    assert "highest" in text
    assert re.search(r"lowest \S+ \(\S+\) at context 900, concurrency 8, temperature 0\.7;", text)
    assert "context 256, concurrency 1, temperature 0.7: 0.900" in text
    for section in ("speedup", "throughput", "acceptance", "round", "crossover"):
        text = reader.text(section).lower()
        assert "temperature 0.7" in text, section
        assert "temperature 0" in text.replace("temperature 0.7", ""), section
    for table in ("grades", "all-cells"):
        settings = {setting for setting, _ in rows(reader, table)}
        assert {setting.rpartition(" ")[2] for setting in settings} == {"0", "0.7"}


def test_no_temperature_is_named_in_a_greedy_run():
    text = read(page_of(good_run))
    listed = [text.text(e.attributes["id"]) for e in text.all("section")][:-1]
    assert "emperature" in text.text("provenance")
    assert [part for part in listed if "emperature" in part] == []


@pytest.mark.parametrize(
    "grade", [Losslessness("near-ties", 40, 38, bugs=1), Losslessness("exact", 0, 0)]
)
def test_a_grade_that_contradicts_its_counts_does_not_count(grade):
    bad = cell(SHIP, 900, 1, losslessness=grade)
    reader = read(render_report(dataclasses.replace(one_cell_run(), cells=(bad,))))
    assert reader.all("td", "speedup", "win") == []
    assert len(reader.all("td", "speedup", "void")) == 1


def test_an_interval_around_one_is_no_win():
    level = cell(SHIP, 900, 1, speedup=1.03, speedup_interval=Interval(0.98, 1.08))
    reader = read(render_report(dataclasses.replace(one_cell_run(), cells=(level,))))
    assert [e.text for e in reader.all("td", "speedup", "even")] == ["1.03×0.98–1.08"]
    assert reader.all("span", "cells", "win") == []


def test_without_an_interval_nothing_is_won_or_shipped():
    lone = cell(SHIP, 900, 1, speedup=9.87, speedup_interval=None)
    verdict = Verdict(SHIP, "Ship it.", 9.87, (Choice(900, 1, 0.0, SHIP, 9.87, "Fastest."),))
    run = dataclasses.replace(good_run(), cells=(cell(AR, 900, 1), lone), verdict=verdict)
    reader = read(render_report(run))
    assert reader.all("span", "cells", "win") == []
    assert reader.all("div", "verdict", "ship") == []
    assert "Ship it." not in reader.text("verdict")
    assert "not faster with confidence, n too small" in reader.text("verdict")
    assert "n too small" in reader.text("cells")


def test_a_round_in_steps_of_the_baseline_is_told_of_concurrency_one_alone():
    run = good_run()
    assert "At concurrency 1 a round yields" in read(render_report(run)).text("verdict")
    crowded = tuple(c for c in run.cells if c.concurrency > 1)
    text = read(render_report(dataclasses.replace(run, cells=crowded))).text("verdict")
    assert "a round yields" not in text


def test_the_control_shows_its_outputs_and_a_difference():
    run = good_run()
    first, second, third, fourth = run.controls
    changed = (
        dataclasses.replace(first, outputs=20, identical=20),
        dataclasses.replace(second, outputs=20, identical=18, near_ties=2),
        dataclasses.replace(third, outputs=20, identical=17, near_ties=1),
        fourth,
    )
    reader = read(render_report(dataclasses.replace(run, controls=changed)))
    text = reader.text("control")
    assert [shown in text for shown in ("20 of 20", "18 of 20", "17 of 20")] == [True] * 3
    assert "2 outputs differ" in text
    assert "outputs not compared" in text
    assert "2 of 20 outputs differ" in reader.text("verdict")
    badges = [e for e in reader.all("span", "control", "badge") if "not-lossless" in e.classes]
    assert len(badges) == 1


def test_a_fault_that_a_warning_names_is_not_listed_twice():
    run = faulty_run()
    line = "ddtree(8,2) at context 900, concurrency 8: invalid (other processes took 23 % CPU)"
    verdict = dataclasses.replace(run.verdict, warnings=(line, *("more" for _ in range(9))))
    reader = read(render_report(dataclasses.replace(run, verdict=verdict)))
    assert reader.text("verdict").count("other processes took 23 % CPU") == 1
    assert [e.text for e in reader.all("summary")] == ["2 more"]


def test_a_recommendation_without_a_cell_is_withdrawn():
    ghost = Arm("ddtree", budget=64, topk=8)
    verdict = Verdict(ghost, "Ship the ghost.", 3.0, (Choice(900, 1, 0.0, ghost, 3.0, "Fast."),))
    reader = read(render_report(dataclasses.replace(good_run(), verdict=verdict)))
    assert "Ship the ghost." not in reader.text("verdict")
    assert "no cell measured it" in reader.text("verdict")


def test_one_bad_setting_withdraws_an_arm_shipped_everywhere():
    run = good_run()
    cells = tuple(
        dataclasses.replace(c, losslessness=not_lossless())
        if (c.arm, c.context, c.concurrency) == (SHIP, 900, 8)
        else c
        for c in run.cells
    )
    reader = read(render_report(dataclasses.replace(run, cells=cells)))
    assert reader.all("div", "verdict", "ship") == []
    assert run.verdict.headline not in reader.text("verdict")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text):
    run = good_run()
    first = dataclasses.replace(run.cells[2], state="invalid", reason=text)
    verdict = Verdict(
        SHIP,
        text,
        1.9,
        tuple(dataclasses.replace(c, reason=text) for c in run.verdict.choices),
        (text,),
    )
    hostile = dataclasses.replace(
        run,
        title=text,
        model=text,
        dtype=text,
        created=text,
        verdict=verdict,
        cells=(*run.cells[:2], first, run.cells[3]),
        spec={text: [text]},
        provenance={text: {text: text}},
    )
    page = render_report(hostile)
    reader = read(page)
    assert external_references(page) == []
    assert reader.faults == []
    assert {e.tag for e in reader.elements} <= {e.tag for e in read(page_of(faulty_run)).elements}
    assert [n for e in reader.elements for n in e.attributes if n.startswith("on")] == []
    assert reader.all("h1")[0].text == text
    assert text in reader.all("dl")[0].text
    assert text in [e.text for e in reader.all("p", "verdict", "headline")]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_number_that_does_not_exist_is_a_dash_with_its_reason(value):
    bare = cell(
        SHIP,
        900,
        1,
        decode_tokens_per_s=value,
        system_tokens_per_s=value,
        ttft_s=value,
        acceptance_length=value,
        round_s=value,
        stage_seconds=None,
        accepted_by_depth=(),
        speedup=value,
    )
    reader = read(render_report(dataclasses.replace(one_cell_run(), cells=(bare,))))
    row = rows(reader, "all-cells")["Context 900, concurrency 1", SHIP.label]
    for column in (5, 6, 7, 9, 10):
        assert row[column].startswith("–"), row
    dashes = reader.all("span", "cells", "none")
    assert all(e.attributes["title"] for e in dashes)
    assert reader.all("svg", "throughput", "plot") == []
    assert "no number for the whole server" in reader.text("throughput")
    assert "The server reports no stage times" in reader.text("round")


def test_spec_and_provenance_are_shown_in_full():
    text = read(page_of(good_run)).text("provenance")
    for expected in (
        "git.revision a6ec395d0c1be2f1",
        "versions.torch 2.13.0+cpu",
        "max_tokens: 128",
    ):
        assert re.sub(r"\s", "", expected) in re.sub(r"\s", "", text)


def test_two_cells_for_one_place_are_refused():
    run = one_cell_run()
    with pytest.raises(ConfigError, match=r"two cells for ddtree\(8,4\) at context 900"):
        render_report(dataclasses.replace(run, cells=run.cells * 2))


def test_temperature_separates_cells_and_is_named():
    cells = tuple(cell(arm, 900, 1, temperature=t) for t in (0.0, 0.7) for arm in ARMS)
    run = dataclasses.replace(good_run(), cells=cells)
    table = rows(read(render_report(run)), "all-cells")
    assert ("Context 900, concurrency 1, temperature 0.7", TREES[0].label) in table
    assert len(table) == len(cells)


def test_the_same_summary_gives_the_same_page_and_survives_json():
    run = faulty_run()
    assert page_of(faulty_run) == render_report(read_summary(run.to_json()))


def test_many_arms_share_the_grey_line():
    reader = read(page_of(large_run))
    assert "35 other arms" in reader.text("throughput")
    assert len(reader.all("svg", "throughput", "plot")) == 3 + 1


def test_write_replaces_the_old_page(tmp_path: Path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(one_cell_run(), path)
    assert path.read_text(encoding="utf-8") == page_of(one_cell_run)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_report(one_cell_run(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_is_no_folder_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match="expected a writable folder"):
        write_report(one_cell_run(), tmp_path / "file" / "report.html")
