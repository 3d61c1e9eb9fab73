"""A run's numbers as tables for other programs and for people: CSV, JSON, Markdown.

Columns keep their names and order; later ones come at the end. Seconds and shares are plain
numbers, rounded nowhere but in Markdown; what is unknown is empty (JSON: null).
"""

import csv
import dataclasses
import io
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ddtree.bench.summarise import LEDGER_FILE, REQUESTS_FILE
from ddtree.records import metrics
from ddtree.records.arms import Arm
from ddtree.records.files import read_requests
from ddtree.records.ledger import CellRow, Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.rounds import STAGES
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary, Interval, RunSummary, Spread, TreeUse

Row = dict[str, Any]

_QUANTILES = ("p10", "p50", "p90", "p95", "p99")
_GRADE = (
    *("grade", "outputs", "identical", "near_ties", "suspects", "bugs"),
    *("largest_gap_ulps", "control_rows", "control_positions", "control_flips"),
    *("control_largest_gap_ulps", "tokens", "near_tie_tokens", "near_tie_excess"),
    *("filter_edges", "tie_excess"),
)
_REQUEST = (
    *("cell", "attempt", "block", "prompt_id", "planned_s", "sent_s", "end_s", "prompt_tokens"),
    *("cached_tokens", "completion_tokens", "counted", "finish_reason", "error"),
)


def cell_rows(summary: RunSummary) -> list[Row]:
    """Every cell with every number: those that may rank first, then the screened ones."""
    roles = (("arm", summary.cells), ("screen", summary.screened))
    return [{"role": role} | _cell_row(cell) for role, cells in roles for cell in cells]


def request_rows(folder: Path) -> list[Row]:
    """Every request on file, in the order of the log. `is_counted` is whether it belongs to the
    valid attempt at its block, which alone makes up a cell's numbers.
    """
    with Ledger.read(folder / LEDGER_FILE) as ledger, ledger.snapshot():
        cells = {row.key: _ledger_place(row) for row in ledger.cells()}
        blocks = ledger.blocks()
    counted = {(b.cell, b.index, b.attempt) for b in blocks if b.state == "ok"}
    return [
        cells[record.cell] | _request_row(record, counted)
        for record in read_requests(folder / REQUESTS_FILE)
        if record.cell in cells
    ]


def to_csv(rows: Sequence[Row]) -> str:
    """With a header; lists as JSON. Empty without rows."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def to_json(rows: Sequence[Row]) -> str:
    """A list of objects."""
    return json.dumps(rows, indent=1, allow_nan=False) + "\n"


def cells_markdown(summary: RunSummary) -> str:
    """A table for a pull request: the verdict, then what may rank, setting by setting."""
    head = (
        *(
            "setting",
            "arm",
            "speed-up",
            "against chain",
            "end to end",
            "tokens/s",
            "total tokens/s",
        ),
        *("TTFT ms", "accepted", "round ms", "outputs", "state"),
    )
    lines = [
        summary.verdict.headline,
        "",
        f"| {' | '.join(head)} |",
        "| --- | --- |" + " ---: |" * (len(head) - 4) + " --- | --- |",
    ]
    lines += [f"| {' | '.join(_markdown_row(cell))} |" for cell in summary.cells]
    if summary.verdict.warnings:
        lines += ["", *(f"- {_escape(warning)}" for warning in summary.verdict.warnings)]
    return "\n".join(lines) + "\n"


def _cell_row(cell: CellSummary) -> Row:
    grade = cell.losslessness
    return {
        **_place(cell.arm, cell.setting),
        "state": cell.state,
        "reason": cell.reason,
        "requests": cell.requests,
        "failed_requests": cell.failed_requests,
        "speedup": cell.speedup,
        **_bounds("speedup", cell.speedup_interval),
        "speedup_p": cell.speedup_p,
        "speedup_vs_chain": cell.speedup_vs_chain,
        **_bounds("speedup_vs_chain", cell.speedup_vs_chain_interval),
        "end_to_end_speedup": cell.end_to_end_speedup,
        **_bounds("end_to_end_speedup", cell.end_to_end_interval),
        "decode_tokens_per_s": cell.decode_tokens_per_s,
        "system_tokens_per_s": cell.system_tokens_per_s,
        "ttft_s": cell.ttft_s,
        "tpot_s": cell.tpot_s,
        **_spread("ttft", cell.ttft),
        **_spread("tpot", cell.tpot),
        **_spread("end_to_end", cell.end_to_end),
        "acceptance_length": cell.acceptance_length,
        **_bounds("acceptance_length", cell.acceptance_interval),
        "acceptance_source": cell.acceptance_source,
        "acceptance_gain": cell.acceptance_gain,
        "round_cost": cell.round_cost,
        "accepted_by_depth": list(cell.accepted_by_depth),
        "round_s": cell.round_s,
        **{f"stage_{stage}_s": (cell.stage_seconds or {}).get(stage) for stage in STAGES},
        **_tree(cell.tree),
        "ratio_deciles": list(cell.ratio_deciles),
        "achieved_concurrency": cell.achieved_concurrency,
        "loop_lag_s": cell.loop_lag_s,
        "cached_tokens": cell.cached_tokens,
        "flags": list(cell.flags),
        **{name: getattr(grade, name) for name in _GRADE},
    }


def _ledger_place(row: CellRow) -> Row:
    return {"role": row.role} | _place(row.arm, row.setting)


def _place(arm: Arm, setting: Setting) -> Row:
    fields = {"method": arm.method, "budget": arm.budget, "topk": arm.topk}
    window = {"draft_window": arm.draft_window}
    return {"arm": arm.label} | fields | window | dataclasses.asdict(setting)


def _bounds(name: str, interval: Interval | None) -> Row:
    return {
        f"{name}_low": None if interval is None else interval.low,
        f"{name}_high": None if interval is None else interval.high,
    }


def _spread(name: str, spread: Spread | None) -> Row:
    row: Row = {f"{name}_count": 0 if spread is None else spread.count}
    return row | {
        f"{name}_{q}_s": None if spread is None else getattr(spread, q) for q in _QUANTILES
    }


def _tree(tree: TreeUse | None) -> Row:
    names = [field.name for field in dataclasses.fields(TreeUse)]
    row = {name: None if tree is None else getattr(tree, name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}


def _request_row(record: RequestRecord, counted: Collection[tuple[str, int, int]]) -> Row:
    stats = record.stats or {}
    return {
        **{name: getattr(record, name) for name in _REQUEST},
        "is_counted": (record.cell, record.block, record.attempt) in counted,
        "chunks": len(record.chunk_times_s),
        "ttft_s": metrics.ttft_s(record),
        "tpot_s": metrics.tpot_s(record),
        "end_to_end_s": metrics.end_to_end_s(record),
        "decode_tokens_per_s": metrics.decode_tokens_per_s(record),
        "rounds": stats.get("rounds"),
        "acceptance_length": metrics.acceptance_length([record]),
        "tree_nodes": stats.get("tree_nodes"),
        "cut_tokens": stats.get("cut_tokens"),
        "source": stats.get("source", "server") if record.stats else None,
    }


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def _markdown_row(cell: CellSummary) -> list[str]:
    grade = cell.losslessness
    return [
        _escape(cell.setting.name),
        _escape(cell.arm.label),
        _times(cell.speedup, cell.speedup_interval),
        _times(cell.speedup_vs_chain, cell.speedup_vs_chain_interval),
        _times(cell.end_to_end_speedup, cell.end_to_end_interval),
        _number(cell.decode_tokens_per_s, ".1f"),
        _number(cell.system_tokens_per_s, ".1f"),
        _number(None if cell.ttft_s is None else cell.ttft_s * 1000, ".0f"),
        _number(cell.acceptance_length, ".2f"),
        _number(None if cell.round_s is None else cell.round_s * 1000, ".1f"),
        f"{grade.grade}, {grade.identical} of {grade.outputs} identical",
        _escape(cell.state if cell.reason is None else f"{cell.state}: {cell.reason}"),
    ]


def _times(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return ""
    if interval is None:
        return f"{value:.2f}x"
    return f"{value:.2f}x ({interval.low:.2f} to {interval.high:.2f})"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
