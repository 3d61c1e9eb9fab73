"""A run folder's records to a RunSummary. Reads only; the same files give the same summary."""

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ddtree.bench.cell_summary import Rivals, classes_of, state_of, summarise_cell
from ddtree.bench.group_parts import OVERRUN
from ddtree.bench.pairing import Blocks, CellData, busy_slots, failures_of, gather, pairs, speedup
from ddtree.bench.recommend import recommend
from ddtree.bench.screening import drift_warnings, sentinels, summarise_screened
from ddtree.errors import ConfigError
from ddtree.records import metrics
from ddtree.records.files import read_requests, write_atomic
from ddtree.records.ledger import BlockRow, CellRow, Ledger
from ddtree.records.requests import RequestRecord
from ddtree.records.settings import Setting
from ddtree.records.summary import (
    CellSummary,
    Control,
    Losslessness,
    RunSummary,
    Skip,
)
from ddtree.records.summary_json import read_tuning

SPEC_FILE = "spec.yaml"
LEDGER_FILE = "ledger.sqlite"
REQUESTS_FILE = "requests.jsonl"
PROVENANCE_FILE = "provenance.json"
SUMMARY_FILE = "summary.json"
TUNING_FILE = "tuning.json"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class RunData:
    """A run folder as read: cells with their requests, by role, of one moment.

    `stale` warns of cells that a newer start has measured again.
    """

    spec: dict[str, Any]
    provenance: dict[str, Any]
    created: float
    arms: tuple[CellData, ...]
    screens: tuple[CellData, ...]
    sentinels: tuple[CellData, ...]
    blocks: tuple[BlockRow, ...]
    grades: dict[str, Losslessness]
    controls: tuple[Control, ...]
    stale: tuple[str, ...]


def read_run(folder: Path) -> RunData:
    """ConfigError names a file or key that is missing or unreadable."""
    spec = _read_spec(folder / SPEC_FILE)
    provenance = _read_json(folder / PROVENANCE_FILE)
    with Ledger.read(folder / LEDGER_FILE) as ledger, ledger.snapshot():
        rows, blocks = ledger.cells(), ledger.blocks()
        grades, controls, created = ledger.grades(), ledger.controls(), ledger.created
    # After the ledger: a run logs a block's requests before it calls the block ok.
    by_cell: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in read_requests(folder / REQUESTS_FILE):
        by_cell[record.cell].append(record)
    by_key: dict[str, list[BlockRow]] = defaultdict(list)
    for block in blocks:
        by_key[block.cell].append(block)
    arms, stale = _newest([row for row in rows if row.role == "arm"])

    def gathered(chosen: Iterable[CellRow]) -> tuple[CellData, ...]:
        return tuple(gather(row, by_key[row.key], by_cell[row.key]) for row in chosen)

    return RunData(
        spec=spec,
        provenance=provenance,
        created=created,
        arms=gathered(arms),
        screens=gathered(row for row in rows if row.role == "screen"),
        sentinels=gathered(row for row in rows if row.role == "sentinel"),
        blocks=blocks,
        grades=grades,
        controls=controls,
        stale=stale,
    )


def summarise(folder: Path) -> RunSummary:
    """Everything a report shows. ConfigError names a file or key that is missing or unreadable."""
    run = read_run(folder)
    seed = run.spec["seed"]
    cells = []
    for group in setting_groups(run.arms):
        rivals = Rivals.among(group)
        cells += [summarise_cell(c, rivals, run.grades.get(c.row.key), seed) for c in group]
    tuning = _read_tuning(folder / TUNING_FILE)
    twins = _twins(cells, tuning["skips"])
    verdict = recommend(cells, twins)
    repeated = sentinels(run.sentinels, run.blocks)
    warnings = (
        *verdict.warnings,
        *run.stale,
        *_data_warnings(run.arms),
        *_control_warnings(run.controls),
        *drift_warnings(repeated),
    )
    return RunSummary(
        title=run.spec["title"],
        created=datetime.fromtimestamp(run.created, UTC).isoformat(timespec="seconds"),
        model=run.spec["model"],
        dtype=run.spec["dtype"],
        verdict=dataclasses.replace(verdict, warnings=warnings),
        cells=(*cells, *twins),
        controls=run.controls,
        spec=run.spec,
        provenance=run.provenance,
        endpoint=_endpoint_kind(run.spec),
        screened=tuple(summarise_screened(run.screens, run.grades, seed)),
        sentinels=repeated,
        **tuning,
    )


def _twins(cells: Sequence[CellSummary], skips: Iterable[Skip]) -> list[CellSummary]:
    """Cells of arms that were left out for being the same as one that ran, under their own name."""
    by_place = {(cell.arm, cell.setting): cell for cell in cells}
    found = []
    for skip in skips:
        cell = by_place.get((skip.same_as, skip.setting)) if skip.same_as is not None else None
        if cell is not None:
            text = f"measured as {cell.arm.label}, which drafts the same trees there"
            found.append(dataclasses.replace(cell, arm=skip.arm, flags=(*cell.flags, text)))
    return found


def setting_groups(cells: Iterable[CellData]) -> list[list[CellData]]:
    """By setting in order, each from small arms to large."""
    groups: dict[Setting, list[CellData]] = defaultdict(list)
    for cell in sorted(cells, key=lambda cell: (cell.row.setting, cell.row.arm.size)):
        groups[cell.row.setting].append(cell)
    return list(groups.values())


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
    ratio = speedup(with_drafter, without, busy_slots(setting), seed)
    if ratio.value is None:
        raise ConfigError(
            f"control at {setting.name}: no block that both servers finished; run it again"
        )
    both = [pair for block in pairs(with_drafter, without) for pair in block]
    return Control(
        setting.context,
        setting.concurrency,
        ratio.value,
        ratio.interval,
        requests=sum(len(b) for blocks in (with_drafter, without) for b in blocks.values()),
        outputs=len(both),
        identical=sum(mine.token_ids == base.token_ids for mine, base in both),
        temperature=setting.temperature,
        rate=setting.rate,
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


def _read_tuning(path: Path) -> dict[str, Any]:
    """As RunSummary's fields; none where the run was not narrowed down."""
    data = _read_json(path) if path.exists() else {}
    try:
        skips, predictions, rungs = read_tuning(data)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a record of tuning ({error!r})") from None
    return {"skips": skips, "predictions": predictions, "rungs": rungs}


def _endpoint_kind(spec: dict[str, Any]) -> str:
    endpoint = spec.get("endpoint")
    return str(endpoint["kind"]) if endpoint else "ddtree"


def _newest(rows: Sequence[CellRow]) -> tuple[list[CellRow], tuple[str, ...]]:
    """The cells that the newest start uses; a warning when some exist under another identity too.

    `rows` are in the ledger's order: what the newest start uses comes last.
    """
    newest = {(r.arm, r.setting): r for r in rows}
    older = len(rows) - len(newest)
    text = (
        f"{older} cells were measured again with another server, model, code or prompts: those of "
        "the newest start are shown"
    )
    return list(newest.values()), (text,) if older else ()


def _data_warnings(data: Sequence[CellData]) -> list[str]:
    """What voids a block voids it for all arms alike: the baseline tells it once."""
    told = {
        cell.row.setting: {_kind_of(reason) for reason in cell.invalid_reasons}
        for cell in data
        if cell.row.arm.method == "ar"
    }
    return [
        f"{cell.row.place}: {text}"
        for cell in data
        for text in _cell_warnings(
            cell, () if cell.row.arm.method == "ar" else told.get(cell.row.setting, ())
        )
    ]


def _kind_of(reason: str) -> str:
    """A reason without its numbers."""
    return _NUMBER.sub("#", reason)


def _cell_warnings(cell: CellData, told: Collection[str]) -> Iterator[str]:
    """`told` are kinds of reasons to leave out; runs with another limit are no trouble at all."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for reason in cell.invalid_reasons:
        if _kind_of(reason) not in told and reason != OVERRUN:
            kinds[_kind_of(reason)].append(reason)
    if kinds:
        reasons = "; ".join(
            f"{first}, and {len(more)} alike" if more else first for first, *more in kinds.values()
        )
        total = sum(map(len, kinds.values()))
        yield f"{total} invalid block{'' if total == 1 else 's'}: {reasons}"
    repeated = failures_of(cell.repeated)
    if repeated:
        yield (
            f"{repeated.total()} requests failed in attempts that were given up or repeated "
            f"({classes_of(repeated)})"
        )
    # A cell that isn't ok has its reason shown already.
    if cell.failures and state_of(cell)[0] == "ok":
        yield (
            f"{cell.failures.total()} of {len(cell.requests)} requests failed "
            f"({classes_of(cell.failures)}); their blocks give no ratio"
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
