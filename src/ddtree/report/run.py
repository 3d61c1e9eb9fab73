"""A run's cells, put in order and looked up by setting and arm; which of them may count."""

from dataclasses import dataclass

from ddtree.errors import ConfigError
from ddtree.records.arms import FULL_WINDOW, METHODS, Arm
from ddtree.records.summary import CellSummary, RunSummary
from ddtree.report.numbers import count, fixed

Window = int | str | None

LOSSLESS_GRADES = ("baseline", "exact", "near-ties")


@dataclass(frozen=True, order=True)
class Setting:
    """What arms are compared at: context in tokens, concurrency in requests, temperature."""

    context: int
    concurrency: int
    temperature: float


@dataclass(frozen=True)
class Run:
    """A summary with its cells indexed; settings and arms are in reading order."""

    summary: RunSummary
    cells: dict[tuple[Setting, Arm], CellSummary]
    settings: tuple[Setting, ...]
    arms: tuple[Arm, ...]
    baseline: Arm

    def at(self, setting: Setting) -> tuple[CellSummary, ...]:
        """The cells of one setting, in the order of the arms."""
        return tuple(self.cells[setting, arm] for arm in self.arms if (setting, arm) in self.cells)

    def of(self, arm: Arm) -> tuple[CellSummary, ...]:
        """The cells of one arm, in the order of the settings."""
        return tuple(self.cells[s, arm] for s in self.settings if (s, arm) in self.cells)

    def judged(self, arm: Arm) -> tuple[CellSummary, ...]:
        """The arm's cells that a verdict speaks of: greedy ones, or the lowest temperature's."""
        lowest = min((s.temperature for s in self.settings), default=0.0)
        return tuple(cell for cell in self.of(arm) if cell.temperature == lowest)

    def label(self, setting: Setting) -> str:
        """`Context 900, concurrency 8`; the temperature too where the run is not all greedy."""
        text = f"Context {setting.context}, concurrency {setting.concurrency}"
        if all(s.temperature == 0 for s in self.settings):
            return text
        return f"{text}, temperature {setting.temperature:g}"


def arrange(summary: RunSummary) -> Run:
    """Index a summary. ConfigError where two cells claim the same arm and setting."""
    cells: dict[tuple[Setting, Arm], CellSummary] = {}
    for cell in summary.cells:
        key = (setting_of(cell), cell.arm)
        if key in cells:
            raise ConfigError(
                f"summary: two cells for {cell.arm.label} at context {cell.context}, concurrency "
                f"{cell.concurrency}, temperature {cell.temperature:g}; expected one, make the "
                "summary again from the run folder"
            )
        cells[key] = cell
    arms = tuple(sorted({cell.arm for cell in summary.cells}, key=_arm_order))
    baselines = [c.arm for c in summary.cells if c.losslessness.grade == "baseline"]
    return Run(
        summary=summary,
        cells=cells,
        settings=tuple(sorted({setting for setting, _ in cells})),
        arms=arms,
        baseline=baselines[0] if baselines else Arm("ar"),
    )


def setting_of(cell: CellSummary) -> Setting:
    """Where a cell was measured."""
    return Setting(cell.context, cell.concurrency, cell.temperature)


def window_order(window: Window) -> tuple[int, int]:
    """Sort key of draft windows: the default, then by width, then `full`."""
    if window is None:
        return (0, 0)
    return (2, 0) if window == FULL_WINDOW else (1, int(window))


def _arm_order(arm: Arm) -> tuple[int, tuple[int, int], int, int]:
    method = METHODS.index(arm.method)
    return (method, window_order(arm.draft_window), arm.budget or 0, arm.topk or 0)


def barred(cell: CellSummary) -> str:
    """Why a cell's speed cannot count, in a few words; empty for one that is valid and lossless."""
    if cell.state in ("planned", "running"):
        return "not finished"
    if cell.state != "ok":
        return f"{cell.state}: {cell.reason}" if cell.reason else cell.state
    lossless = cell.losslessness
    faults = [
        count(n, noun) for n, noun in ((lossless.bugs, "bug"), (lossless.suspects, "suspect")) if n
    ]
    if lossless.grade in LOSSLESS_GRADES and not faults:
        unchecked = lossless.grade != "baseline" and lossless.outputs == 0
        return "no output compared" if unchecked else ""
    if lossless.grade == "unclassified":
        return "losslessness not classified"
    return f"not lossless: {', '.join(faults)}" if faults else "not lossless"


def barred_word(cell: CellSummary) -> str:
    """`barred` in a word or two, short enough for a square of the heat map."""
    if cell.state == "ok" and cell.losslessness.grade == "unclassified":
        return "unclassified"
    return barred(cell).split(":", maxsplit=1)[0]


def where(cell: CellSummary) -> str:
    """`ddtree(16,4) at context 900, concurrency 8`."""
    text = f"{cell.arm.label} at context {cell.context}, concurrency {cell.concurrency}"
    return text if cell.temperature == 0 else f"{text}, temperature {cell.temperature:g}"


def is_win(cell: CellSummary) -> bool:
    """True where a valid, lossless cell is faster than the baseline, by its whole interval."""
    if barred(cell) or cell.speedup is None or not cell.speedup > 1:
        return False
    return cell.speedup_interval is None or cell.speedup_interval.low > 1


def window_label(window: Window) -> str:
    """A draft window in words."""
    if window is None:
        return "the checkpoint's default draft window"
    if window == FULL_WINDOW:
        return "the full draft window"
    return f"a draft window of {window} tokens"


def arm_meaning(arm: Arm) -> str:
    """An arm in words, for a reader who has not seen its label before."""
    if arm.method == "ar":
        return "autoregressive decoding, no drafter in use"
    if arm.method == "chain":
        return f"DFlash's single chain, {window_label(arm.draft_window)}"
    return (
        f"a draft tree of {count(arm.budget or 0, 'node')}, {arm.topk} candidates per depth, "
        f"{window_label(arm.draft_window)}"
    )


def ratio(value: float) -> str:
    """`1.86×`."""
    return f"{fixed(value, 2)}×"
