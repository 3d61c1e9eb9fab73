"""A run folder's records to a RunSummary. Reads only; the same files give the same summary.

Cell-level times and speeds are medians over the finished requests of valid blocks; system
throughput pools the busy windows of all blocks.
"""

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from ddtree.bench.pairing import (
    Blocks,
    CellData,
    end_to_end_speedup,
    failures_of,
    gather,
    pairs,
    speedup,
    unanswered,
)
from ddtree.bench.recommend import recommend
from ddtree.errors import ConfigError
from ddtree.records import metrics
from ddtree.records.files import read_requests, write_atomic
from ddtree.records.ledger import BlockRow, CellRow, Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.statistics import Estimate
from ddtree.records.summary import (
    CellState,
    CellSummary,
    Control,
    Losslessness,
    RunSummary,
    setting_name,
)

SPEC_FILE = "spec.yaml"
LEDGER_FILE = "ledger.sqlite"
REQUESTS_FILE = "requests.jsonl"
PROVENANCE_FILE = "provenance.json"
SUMMARY_FILE = "summary.json"

MAX_FAILED_SHARE = 0.05

Setting = tuple[int, int, float]


def summarise(folder: Path) -> RunSummary:
    """Everything a report shows. ConfigError names a file or key that is missing or unreadable."""
    spec = _read_spec(folder / SPEC_FILE)
    provenance = _read_json(folder / PROVENANCE_FILE)
    with Ledger.read(folder / LEDGER_FILE) as ledger, ledger.snapshot():
        rows = [row for row in ledger.cells() if row.role == "arm"]
        blocks = {row.key: ledger.blocks(row.key) for row in rows}
        grades, controls, created = ledger.grades(), ledger.controls(), ledger.created
    # After the ledger: a run logs a block's requests before it calls the block ok.
    data, stale = _newest_cells(rows, blocks, read_requests(folder / REQUESTS_FILE))
    by_setting: dict[Setting, list[CellData]] = defaultdict(list)
    for cell in data:
        by_setting[_setting(cell)].append(cell)
    cells = []
    for setting in sorted(by_setting):
        group = sorted(by_setting[setting], key=lambda cell: cell.row.arm.size)
        cells += [_cell(cell, group, grades.get(cell.row.key), spec["seed"]) for cell in group]
    verdict = recommend(cells)
    warnings = (*verdict.warnings, *stale, *_data_warnings(data), *_control_warnings(controls))
    return RunSummary(
        title=spec["title"],
        created=datetime.fromtimestamp(created, UTC).isoformat(timespec="seconds"),
        model=spec["model"],
        dtype=spec["dtype"],
        verdict=dataclasses.replace(verdict, warnings=warnings),
        cells=tuple(cells),
        controls=controls,
        spec=spec,
        provenance=provenance,
    )


def write_summary(folder: Path) -> RunSummary:
    """Summarise and keep the result as `summary.json` in the folder."""
    summary = summarise(folder)
    write_atomic(folder / SUMMARY_FILE, summary.to_json() + "\n")
    return summary


def control_of(setting: Setting, with_drafter: Blocks, without: Blocks, seed: int) -> Control:
    """`ar` beside a loaded drafter over `ar` on a server without one, paired by block and prompt.

    Speeds and outputs are compared; which differing outputs are near-ties is for a grader to say.

    ConfigError when no pair can be made: a control without data must not look like one.
    """
    context, concurrency, temperature = setting
    ratio = speedup(with_drafter, without, concurrency, seed)
    if ratio.value is None:
        raise ConfigError(
            f"control at {setting_name(*setting)}: no block that both servers finished; run it "
            "again"
        )
    both = [pair for block in pairs(with_drafter, without) for pair in block]
    return Control(
        context,
        concurrency,
        ratio.value,
        ratio.interval,
        requests=sum(len(b) for blocks in (with_drafter, without) for b in blocks.values()),
        outputs=len(both),
        identical=sum(mine.token_ids == base.token_ids for mine, base in both),
        temperature=temperature,
    )


def _read_spec(path: Path) -> dict[str, Any]:
    try:
        spec = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; is this a run folder?") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML ({error})") from None
    for name in ("title", "model", "dtype", "seed"):
        if not isinstance(spec, dict) or name not in spec:
            raise ConfigError(f"{path}: {name!r} is missing; is this a run's resolved spec?")
    return dict(spec)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; is this a run folder?") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not a JSON object ({error})") from None


def _newest_cells(
    rows: Sequence[CellRow],
    blocks: Mapping[str, Sequence[BlockRow]],
    requests: Sequence[RequestRecord],
) -> tuple[list[CellData], list[str]]:
    """The cells that the newest start uses; a warning when some exist under another identity too.

    `rows` are in the ledger's order: what the newest start uses comes last.
    """
    newest = {(r.arm, r.context, r.concurrency, r.temperature): r for r in rows}
    by_cell: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in requests:
        by_cell[record.cell].append(record)
    data = [gather(row, blocks[row.key], by_cell[row.key]) for row in newest.values()]
    older = len(rows) - len(newest)
    text = (
        f"{older} cells were measured again with another server, model, code or prompts: those of "
        "the newest start are shown"
    )
    return data, [text] if older else []


def _setting(cell: CellData) -> Setting:
    return cell.row.context, cell.row.concurrency, cell.row.temperature


def _state(cell: CellData) -> tuple[CellState, str | None]:
    """The ledger's state, unless the counted blocks' requests say that the cell is no good."""
    if cell.row.state != "ok":
        return cell.row.state, cell.row.reason
    failed, counted = cell.failures.total(), len(cell.requests)
    if failed > MAX_FAILED_SHARE * counted:
        return "invalid", f"{failed} of {counted} requests failed ({_classes(cell.failures)})"
    if not cell.finished:
        return "invalid", "no finished request in a valid block"
    return "ok", None


def _classes(failures: Counter[str]) -> str:
    return ", ".join(f"{name} {n}" for name, n in failures.most_common())


def _find(group: Iterable[CellData], method: str, like: CellData) -> CellData | None:
    """The valid cell of `method`, with the same draft window if there is one."""
    found = [c for c in group if c.row.arm.method == method and _state(c)[0] == "ok"]
    same = [c for c in found if c.row.arm.draft_window == like.row.arm.draft_window]
    return next(iter(same or found), None)


def _cell(
    cell: CellData, group: Sequence[CellData], grade: Losslessness | None, seed: int
) -> CellSummary:
    row, finished, (state, reason) = cell.row, cell.finished, _state(cell)
    baseline, chain = _find(group, "ar", cell), _find(group, "chain", cell)
    ratio = _against(cell, baseline, state, seed)
    chain_ratio = _against(cell, chain, state, seed)
    stages = metrics.stage_seconds_per_round(finished)
    return CellSummary(
        arm=row.arm,
        context=row.context,
        concurrency=row.concurrency,
        temperature=row.temperature,
        state=state,
        reason=reason,
        requests=len(cell.requests),
        failed_requests=cell.failures.total(),
        speedup=ratio.value,
        speedup_interval=ratio.interval,
        speedup_vs_chain=chain_ratio.value,
        speedup_vs_chain_interval=chain_ratio.interval,
        end_to_end_speedup=_end_to_end(cell, baseline, state, seed),
        decode_tokens_per_s=_median(metrics.decode_tokens_per_s, finished),
        system_tokens_per_s=_system(cell),
        ttft_s=_median(metrics.ttft_s, finished),
        tpot_s=_median(metrics.tpot_s, finished),
        acceptance_length=metrics.acceptance_length(finished),
        accepted_by_depth=metrics.accepted_by_depth(finished),
        stage_seconds=stages,
        round_s=sum(stages.values()) if stages else None,
        losslessness=_losslessness(cell, baseline, grade),
    )


def _against(cell: CellData, other: CellData | None, state: CellState, seed: int) -> Estimate:
    """No ratio for or against a cell that isn't ok; a cell against itself is 1."""
    if other is None or state != "ok":
        return Estimate(None, None, 0, 0)
    if other is cell:
        return Estimate(1.0, None, len(cell.blocks), len(cell.finished))
    return speedup(cell.blocks, other.blocks, cell.row.concurrency, seed)


def _end_to_end(
    cell: CellData, baseline: CellData | None, state: CellState, seed: int
) -> float | None:
    if baseline is None or state != "ok":
        return None
    return end_to_end_speedup(cell.blocks, baseline.blocks, seed).value


def _losslessness(
    cell: CellData, baseline: CellData | None, grade: Losslessness | None
) -> Losslessness:
    """The recorded grade, unless the requests hold what it doesn't cover.

    Outputs that came since, or prompts that the baseline finished and this arm failed, leave the
    cell unclassified; an answer whose counts contradict each other is a bug.
    """
    if cell.row.arm.method == "ar":
        count = len(cell.finished)
        return grade or Losslessness("baseline", outputs=count, identical=count)
    grade = grade or Losslessness("unclassified", outputs=0, identical=0)
    if cell.miscounts:
        return dataclasses.replace(
            grade,
            grade="not-lossless",
            outputs=grade.outputs + cell.miscounts,
            bugs=grade.bugs + cell.miscounts,
        )
    if baseline is None or grade.grade == "not-lossless":
        return grade
    both = [pair for block in pairs(cell.blocks, baseline.blocks) for pair in block]
    differing = sum(mine.token_ids != base.token_ids for mine, base in both)
    covered = len(both) <= grade.outputs and differing <= grade.outputs - grade.identical
    if not covered or unanswered(cell.blocks, baseline.blocks):
        return dataclasses.replace(grade, grade="unclassified")
    return grade


def _median(
    metric: Callable[[RequestRecord], float | None], records: Sequence[RequestRecord]
) -> float | None:
    values = [value for value in map(metric, records) if value is not None]
    return median(values) if values else None


def _system(cell: CellData) -> float | None:
    found = [metrics.busy_window(b, cell.row.concurrency) for b in cell.blocks.values()]
    windows = [window for window in found if window is not None]
    if not windows:
        return None
    return sum(w.tokens for w in windows) / sum(w.seconds for w in windows)


def _data_warnings(data: Sequence[CellData]) -> list[str]:
    return [f"{cell.row.place}: {text}" for cell in data for text in _cell_warnings(cell)]


def _cell_warnings(cell: CellData) -> Iterator[str]:
    if cell.invalid_reasons:
        reasons = "; ".join(f"{r} ({n})" for r, n in Counter(cell.invalid_reasons).items())
        yield f"{len(cell.invalid_reasons)} invalid blocks: {reasons}"
    repeated = failures_of(cell.repeated)
    if repeated:
        yield (
            f"{repeated.total()} requests failed in attempts that were given up or repeated "
            f"({_classes(repeated)})"
        )
    # A cell that isn't ok has its reason shown already.
    if cell.failures and _state(cell)[0] == "ok":
        yield (
            f"{cell.failures.total()} of {len(cell.requests)} requests failed "
            f"({_classes(cell.failures)}); their blocks give no ratio"
        )
    short = sum(metrics.tpot_s(record) is None for record in cell.finished)
    if short:
        yield f"{short} answers came in one chunk and have no decode speed"


def _control_warnings(controls: Sequence[Control]) -> Iterator[str]:
    for control in controls:
        if control.is_off:
            interval = control.ratio_interval
            spread = "n too small"
            if interval is not None:
                spread = f"{interval.low:.2f} to {interval.high:.2f}"
            yield (
                f"{control.place} runs at {control.ratio:.3f} ({spread}) times its speed on a "
                "server without a drafter: speed-ups may be off by as much"
            )
        if control.differing:
            yield (
                f"{control.place} answers {control.differing} of {control.outputs} prompts "
                "differently on a server without a drafter, not explained by near-ties: the "
                "baseline itself is in doubt"
            )
