"""How arms were picked: what was predicted, which went on, what only served to choose, drift."""

from dataclasses import dataclass
from statistics import median

from ddtree.records.arms import Arm
from ddtree.records.summary import CellSummary, Prediction, Rung
from ddtree.report.charts import Axis, Guide, Line, Panel, draw
from ddtree.report.curves import Chart
from ddtree.report.drift import drift_chart, drift_text
from ddtree.report.grid import Column, Table, arm_row, row_of
from ddtree.report.numbers import (
    Shown,
    count,
    fixed,
    is_number,
    milliseconds,
    missing,
    number,
    times,
)
from ddtree.report.run import Run, barred
from ddtree.report.series import numbered
from ddtree.report.tables import CELL_COLUMNS, cell_values


@dataclass(frozen=True)
class Selection:
    """Everything about how arms were picked; each part is empty where the run has none of it."""

    predictions: Table
    error: str
    scatter: Chart | None
    rungs: Table
    screened: Table
    drift: Chart | None
    drift_text: str

    @property
    def parts(self) -> int:
        """How many of its parts the run has."""
        tables = (self.predictions, self.rungs, self.screened)
        return sum(1 for table in tables if table.rows) + bool(self.drift_text)


@dataclass(frozen=True)
class _Pair:
    prediction: Prediction
    measured: CellSummary
    speedup: float

    @property
    def error(self) -> float:
        return self.prediction.speedup / self.speedup - 1


def selection(run: Run) -> Selection:
    """Lay out what a run foretold, tried and kept; measured numbers are of valid cells alone."""
    pairs = _pairs(run)
    return Selection(
        predictions=_prediction_table(run, pairs),
        error=_error(run, list(pairs.values())),
        scatter=_scatter(list(pairs.values())),
        rungs=_rung_table(run),
        screened=_screened_table(run),
        drift=drift_chart(run),
        drift_text=drift_text(run),
    )


def _pairs(run: Run) -> dict[Prediction, _Pair]:
    pairs = {}
    for prediction in run.summary.predictions:
        cell = run.cells.get((prediction.setting, prediction.arm))
        if cell is None or barred(cell) or cell.speedup is None:
            continue
        if is_number(cell.speedup) and cell.speedup > 0 and is_number(prediction.speedup):
            pairs[prediction] = _Pair(prediction, cell, cell.speedup)
    return pairs


def _prediction_table(run: Run, pairs: dict[Prediction, _Pair]) -> Table:
    columns = (
        Column("Speed-up", "predicted"),
        Column("Speed-up", "measured"),
        Column("Error, %"),
        Column("Acceptance length", "predicted"),
        Column("Acceptance length", "measured"),
        Column("Round, ms", "predicted"),
        Column("Round, ms", "measured"),
        Column("Run", text=True),
        Column("Why", text=True),
    )
    ordered = sorted(run.summary.predictions, key=lambda p: (p.setting, p.arm.size))
    rows = tuple(arm_row(run, p.arm, p.setting, _foretold(run, p, pairs.get(p))) for p in ordered)
    lead = (
        "Acceptance length is replayed over recorded outputs, a round's time is that of the same "
        "budget, context and concurrency; the predicted speed-up follows from both."
    )
    return Table("predictions", "Predicted and measured", columns, rows, lead)


def _foretold(run: Run, prediction: Prediction, pair: _Pair | None) -> tuple[Shown, ...]:
    cell = run.cells.get((prediction.setting, prediction.arm))
    reason = "not run" if cell is None else barred(cell) or "no pairs to compare"
    measured = None if pair is None else pair.measured
    error = missing(reason) if pair is None else Shown(f"{100 * pair.error:+.1f}")
    none = "not predicted"
    return (
        number(prediction.speedup, 2, none),
        missing(reason)
        if pair is None
        else times(pair.speedup, pair.measured.speedup_interval, ""),
        error,
        number(prediction.acceptance_length, 2, none),
        number(measured.acceptance_length if measured else None, 2, reason),
        milliseconds(prediction.round_s, 2, none),
        milliseconds(measured.round_s if measured else None, 2, reason),
        Shown("yes" if prediction.chosen else "no"),
        Shown(prediction.reason),
    )


def _error(run: Run, pairs: list[_Pair]) -> str:
    total = len(run.summary.predictions)
    if not total:
        return ""
    text = f"{count(total, 'prediction')}, {len(pairs)} of them beside a valid measurement"
    if not pairs:
        return f"{text}: no error can be given."
    errors = sorted(abs(pair.error) for pair in pairs)
    return (
        f"{text}: the median error of the speed-up is {fixed(100 * median(errors), 1)} %, the "
        f"largest {fixed(100 * errors[-1], 1)} %."
    )


def _scatter(pairs: list[_Pair]) -> Chart | None:
    if len(pairs) < 3:
        return None
    points = {(pair.prediction.speedup, pair.speedup) for pair in pairs}
    high = 1.08 * max(max(point) for point in points)
    line = Line("arm", numbered(0), tuple(sorted(points)), joined=False)
    panel = Panel(
        slug="predicted",
        x=Axis("predicted speed-up", low=0.0, high=high),
        y=Axis("measured speed-up", low=0.0, high=high),
        lines=(line,),
        description=f"{count(len(points), 'point')} around the diagonal of equal numbers.",
        guides=(Guide(((0.0, 0.0), (high, high)), dashed=True),),
    )
    return Chart("Measured against predicted speed-up", draw(panel))


def _rung_table(run: Run) -> Table:
    columns = (
        Column("Rung", text=True),
        Column("Prompts"),
        Column("Arms"),
        Column("Place"),
        Column("Speed-up"),
        Column("Went on", text=True),
    )
    rows = tuple(
        arm_row(run, arm, rung.setting, values)
        for rung in run.summary.rungs
        for arm, values in _rung_rows(rung)
    )
    lead = (
        "Every arm of a rung ran on the same prompts; the fastest of each setting went on to the "
        "next one, with more prompts."
    )
    return Table("rungs", "Rungs of the halving", columns, rows, lead)


def _rung_rows(rung: Rung) -> list[tuple[Arm, tuple[Shown, ...]]]:
    """The arms of a rung, fastest first; an arm without a ratio has no place."""
    speeds = dict(zip(rung.arms, rung.speedups, strict=True))
    ranked = sorted(rung.arms, key=lambda arm: -(speeds[arm] or 0.0))
    rows: list[tuple[Arm, tuple[Shown, ...]]] = []
    for place, arm in enumerate(ranked, 1):
        speed = speeds[arm]
        rows.append(
            (
                arm,
                (
                    Shown(rung.name),
                    Shown(f"{rung.prompts:,}"),
                    Shown(f"{len(rung.arms):,}"),
                    missing("no ratio") if speed is None else Shown(str(place)),
                    number(speed, 2, "no ratio"),
                    Shown("yes" if arm in rung.kept else "no"),
                ),
            )
        )
    return rows


def _screened_table(run: Run) -> Table:
    rows = tuple(
        row_of(run, cell, cell_values(run, cell, ranks=False))
        for cell in sorted(run.summary.screened, key=lambda c: (c.setting, c.arm.size))
    )
    lead = "The cells of the rungs. They rank nowhere and are drawn in no chart."
    return Table("screened", "Screened cells, for choosing only", CELL_COLUMNS, rows, lead)
