"""Tables of a run: columns that stay, numbers that read back, text that breaks nothing."""

import csv
import io
import json
from pathlib import Path

import pytest
from run_folders import AR, TREE, Answer, RunFolder, answers, fill, find
from summaries import cell, tree

from ddtree.bench.export import (
    cell_rows,
    cells_markdown,
    request_rows,
    to_csv,
    to_json,
)
from ddtree.bench.summarise import summarise

DOCS = Path(__file__).parents[2] / "docs" / "bench-results.md"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return fill(RunFolder(tmp_path / "run"))


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_every_cell_with_its_interval(folder: RunFolder) -> None:
    summary = summarise(folder.path)
    rows = read(to_csv(cell_rows(summary)))
    assert [row["arm"] for row in rows] == ["ar", "chain", "ddtree(8,4)"]
    mine, found = rows[2], find(summary, TREE)
    assert found.speedup_interval is not None
    assert float(mine["speedup"]) == found.speedup
    assert float(mine["speedup_low"]) == found.speedup_interval.low
    assert float(mine["speedup_p"]) == found.speedup_p
    assert (mine["budget"], mine["draft_window"], mine["context"]) == ("8", "", "60")
    assert json.loads(mine["accepted_by_depth"]) == [1.0, 1.0, 1.0]
    assert float(mine["stage_verify_s"]) == found.stage_seconds["verify"]  # type: ignore[index]
    assert (mine["stage_draft_s"], mine["ttft_p99_s"], mine["ttft_count"]) == ("", "", "4")
    assert (mine["grade"], mine["outputs"], mine["role"]) == ("exact", "4", "arm")


def test_json_is_the_same_table(folder: RunFolder) -> None:
    rows = cell_rows(summarise(folder.path))
    told = json.loads(to_json(rows))
    assert told == json.loads(json.dumps(rows))
    assert list(told[0]) == list(read(to_csv(rows))[0])


def test_every_field_of_a_cell_is_in_its_row(folder: RunFolder) -> None:
    columns = set(cell_rows(summarise(folder.path))[0])
    flat = {
        *("speedup_low", "speedup_vs_chain_high", "end_to_end_speedup_low"),
        *("acceptance_length_high", "ttft_p95_s", "tpot_count", "end_to_end_p50_s"),
        *("rescued", "chain_length", "gain_by_node", "accepted_ranks", "node_use"),
        *("near_tie_excess", "rate", "loop_lag_s", "flags", "reason"),
    }
    assert flat <= columns


def named(section: str) -> list[str]:
    """Columns that the page names in one of its sections, in order; `a_{x,y}` is two."""
    text = DOCS.read_text().split(f"### {section}")[1].split("\n#")[0]
    block = text.split("```text\n")[1].split("```")[0]
    names = []
    for word in block.split():
        head, _, rest = word.partition("{")
        inside, _, tail = rest.partition("}")
        names += [head + part + tail for part in inside.split(",")] if rest else [word]
    return names


def test_documented_columns_are_those_there_are(folder: RunFolder) -> None:
    assert named("Columns of cells") == list(cell_rows(summarise(folder.path))[0])
    assert named("Columns of requests") == list(request_rows(folder.path)[0])


def test_screened_cells_come_last_and_are_named(folder: RunFolder) -> None:
    import dataclasses

    summary = dataclasses.replace(summarise(folder.path), screened=(cell(tree(4), 3.0),))
    rows = cell_rows(summary)
    assert [row["role"] for row in rows] == ["arm"] * 3 + ["screen"]
    assert "ddtree(4,4)" not in cells_markdown(summary)


def test_markdown_is_a_table_that_texts_cannot_break(folder: RunFolder) -> None:
    with folder.ledger() as ledger:
        key = next(row.key for row in ledger.cells() if row.arm == TREE)
        ledger.set_cell_state(key, "invalid", "a | b\nc")
    summary = summarise(folder.path)
    lines = cells_markdown(summary).splitlines()
    assert lines[0] == summary.verdict.headline
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 5
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "invalid: a \\| b c" in table[4]
    assert "1.50x (1.50 to 1.50)" in table[3]


def test_requests_are_all_there_and_say_whether_they_count(folder: RunFolder) -> None:
    with folder.ledger() as ledger:
        key = next(row.key for row in ledger.cells() if row.arm == TREE)
        ledger.finish_block(key, 1, "invalid", "noise")
    folder.block(key, 1, [Answer(0.1, chunk=4)])
    folder.block(key, 4, [Answer(0.1, error="stall: x, y")], "failed", "no_progress")
    rows = read(to_csv(request_rows(folder.path)))
    assert len(rows) == 14
    mine = [row for row in rows if row["arm"] == "ddtree(8,4)" and row["block"] in ("1", "4")]
    assert [(r["attempt"], r["is_counted"], r["error"]) for r in mine] == [
        ("0", "False", ""),
        ("1", "True", ""),
        ("0", "False", "stall: x, y"),
    ]
    first = next(row for row in rows if row["arm"] == "ar")
    assert float(first["tpot_s"]) == pytest.approx(0.05)
    assert (first["acceptance_length"], first["chunks"], first["source"]) == ("1.0", "21", "server")


def test_a_run_without_cells_is_an_empty_table(tmp_path: Path) -> None:
    path = RunFolder(tmp_path / "run").path
    assert to_csv(cell_rows(summarise(path))) == ""
    assert json.loads(to_json(request_rows(path))) == []
    assert "No recommendation" in cells_markdown(summarise(path))


def test_numbers_are_not_rounded(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.cell(AR, answers(1.0))
    folder.cell(TREE, answers(1.7320508075688772, chunk=4))
    row = read(to_csv(cell_rows(summarise(folder.path))))[1]
    assert float(row["speedup"]) == pytest.approx(3**0.5, abs=1e-12)
