"""A coding evaluation on the page: of its own, in a terminal, and inside a run's."""

import dataclasses
import json
from pathlib import Path

import pytest
from report_html import read
from report_samples import good_run

from ddtree.records.arms import Arm
from ddtree.records.evals import Discordant, EvalRow, EvalSummary, PairedResult
from ddtree.records.summary import Interval
from ddtree.report import coding
from ddtree.report.coding import SHOWN_CHARS, coding_text, coding_view
from ddtree.report.coding_page import render_coding, write_coding_page
from ddtree.report.page import render_report

HOSTILE = "</pre><script>alert(1)</script>"

PAIRED = PairedResult(
    both=90,
    only_baseline=3,
    only_arm=1,
    neither=70,
    mcnemar_p=0.625,
    difference=-2 / 164,
    interval=Interval(-0.0366, 0.0122, 0.95),
    excluded_loss=0.0412,
    identical=150,
    compared=164,
    grade="near-ties",
    method_shift=None,
    discordant=(
        Discordant("HumanEval/7", "passed", "own_assert", "the baseline's", HOSTILE),
        Discordant("HumanEval/9", "timeout", "passed", "x" * (SHOWN_CHARS + 5), "short"),
    ),
)
ROW = EvalRow(
    arm=Arm("ar"),
    tasks=164,
    samples=164,
    passed=93,
    pass_at={1: 93 / 164},
    interval=Interval(0.490, 0.641, 0.95),
    outcomes={"passed": 93, "assertion": 60, "no_code": 11},
    methods={"fence": 153, "none, no_code": 11},
    lenient_passed=93,
    length_share=0.125,
    tokens_per_s=57.25,
    speedup=None,
    acceptance_length=None,
    paired=None,
    evidence="The baseline.",
)
TREE = dataclasses.replace(
    ROW,
    arm=Arm("ddtree", 16, 4),
    passed=91,
    pass_at={1: 91 / 164, 10: 0.75},
    lenient_passed=92,
    tokens_per_s=90.0,
    speedup=1.57,
    acceptance_length=2.9,
    paired=PAIRED,
    evidence="150 of 164 outputs are identical.",
)
SUMMARY = EvalSummary(
    suite="humaneval",
    suite_sha256="b796",
    model="smollm2-135m",
    prompting="chat",
    sampling="greedy",
    samples=1,
    max_tokens=256,
    extractor="1",
    sandbox="bubblewrap (variant C)",
    selfcheck="164 of 164 references pass",
    rows=(ROW, TREE),
    noise=dataclasses.replace(PAIRED, identical=164),
    problems=("ar: a problem",),
    provenance={"cpu": "A CPU", "server": {"device": "cpu", "torch": "2.13", "transformers": "5"}},
    warnings=("a warning",),
)


def test_the_row_says_it_all() -> None:
    row = coding_view(SUMMARY).rows[1]
    shown = dict(zip((column.title for column in coding.COLUMNS), row.values, strict=True))
    assert shown["pass@1"].text == "55.5 %"
    assert shown["pass@1"].note == "49.0 to 64.1, 91 of 164"
    assert shown["Difference, points"].text == "-1.2"
    assert shown["Difference, points"].note == "-3.7 to 1.2"
    assert shown["A loss above is excluded, points"].text == "4.1"
    assert shown["Lost and won tasks"].text == "3 lost, 1 won"
    assert shown["McNemar's p"].text == "0.625"
    assert shown["Identical outputs"].text == "150 of 164"
    assert shown["Losslessness"].badge == "near-ties"
    assert shown["Ended at the limit"].text == "12 %"
    assert shown["Speed-up"].text == "1.57×"
    assert shown["Acceptance length"].text == "2.90"
    assert row.outcomes == "pass@10 75.0 %; passed 93, assertion 60, no code 11"
    assert row.methods.endswith("92 would pass leniently")


def test_the_baseline_is_not_compared_with_itself() -> None:
    row = coding_view(SUMMARY).rows[0]
    assert [value.why_missing for value in row.values[1:7]] == ["the baseline"] * 6
    assert row.values[-1].why_missing == "ar drafts nothing"
    assert "leniently" not in row.methods


def test_where_nothing_was_scored_or_bounded() -> None:
    open_ended = dataclasses.replace(PAIRED, grade=None, interval=None, excluded_loss=-0.01)
    row = dataclasses.replace(TREE, paired=open_ended, speedup=None, tokens_per_s=None)
    values = coding_view(dataclasses.replace(SUMMARY, rows=(row,))).rows[0].values
    assert values[1].note == "no interval"
    assert values[2].text == "0.0"
    assert values[6].why_missing == "no server scored the outputs that differ"
    assert values[8].why_missing
    assert values[9].why_missing == "no block to compare"


def test_page_of_its_own() -> None:
    page = render_coding(SUMMARY)
    read_page = read(page)
    assert read_page.faults == []
    text = read_page.text("coding")
    for part in ("Not valid", "ar: a problem", "a warning", "150 of 164 outputs are identical."):
        assert part in text
    assert "Noise: the baseline run twice gave 164 of 164" in text
    assert "HumanEval/7: passed with ar, own assert with ddtree(16,4)" in text
    assert "[5 characters before]" in text
    # As text it is there, as markup it is not.
    assert HOSTILE in text
    assert HOSTILE not in page
    (data,) = [e for e in read_page.all("script") if e.attributes.get("id") == "data"]
    assert json.loads(data.text)["rows"][1]["paired"]["only_baseline"] == 3


def test_long_lists_are_cut_and_counted() -> None:
    many = dataclasses.replace(PAIRED, discordant=PAIRED.discordant[:1] * 30)
    summary = dataclasses.replace(SUMMARY, rows=(dataclasses.replace(TREE, paired=many),))
    view = coding_view(summary)
    assert (len(view.pairs), view.more_pairs) == (25, 5)
    assert "5 more are in the evaluation" in read(render_coding(summary)).text("coding")


def test_inside_a_runs_page() -> None:
    page = read(render_report(good_run(), [SUMMARY]))
    assert page.faults == []
    assert "humaneval" in page.text("coding")
    titles = [e.text for e in page.all("a") if e.attributes.get("href") == "#coding"]
    assert [title.split()[-1] for title in titles] == ["Coding"]
    without = read(render_report(good_run()))
    assert not [e for e in without.all("section") if e.attributes.get("id") == "coding"]


def test_in_a_terminal() -> None:
    lines = coding_text(SUMMARY).splitlines()
    assert lines[0] == "humaneval: 164 tasks, 1 answer to each; chat, greedy; 256 tokens"
    assert "NOT VALID: ar: a problem" in lines
    assert "  pass@1: 56.7 % (49.0 to 64.1, 93 of 164)" in lines
    assert "  Speed-up: 1.57×" in lines
    assert not [line for line in lines if line.endswith(": the baseline")]


def test_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    write_coding_page(SUMMARY, path)
    assert path.read_text() == render_coding(SUMMARY)


@pytest.mark.parametrize("field", ["suite", "model", "sandbox", "selfcheck"])
def test_every_string_is_escaped(field: str) -> None:
    page = render_coding(dataclasses.replace(SUMMARY, **{field: HOSTILE}))
    assert HOSTILE not in page
    assert read(page).faults == []
