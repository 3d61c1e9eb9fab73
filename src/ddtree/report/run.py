"""A run's cells, put in order and looked up by setting and arm; which of them may count."""

from dataclasses import dataclass

from ddtree.errors import ConfigError
from ddtree.records.arms import FULL_WINDOW, Arm, Window
from ddtree.records.settings import Setting
from ddtree.records.summary import CellSummary, Choice, Control, RunSummary
from ddtree.report.numbers import count, fixed


@dataclass(frozen=True, order=True)
class Load:
    """How requests were sampled and how they arrived; `rate` is 0 in a closed loop."""

    temperature: float
    rate: float

    @property
    def slug(self) -> str:
        """For element ids: letters, digits, hyphens and underscores."""
        return f"{self.temperature:g}-{self.rate:g}".replace(".", "_")


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

    @property
    def is_greedy(self) -> bool:
        """Whether nothing was sampled, so that no temperature need be named."""
        return all(s.temperature == 0 for s in self.settings)

    @property
    def is_closed(self) -> bool:
        """Whether every load was a closed loop, so that no rate need be named."""
        return all(s.rate == 0 for s in self.settings)

    @property
    def loads(self) -> tuple[Load, ...]:
        """The temperatures and rates that contexts and concurrencies were crossed with."""
        return tuple(sorted({Load(s.temperature, s.rate) for s in self.settings}))

    def under(self, load: Load) -> tuple[Setting, ...]:
        """The settings of one load."""
        return tuple(s for s in self.settings if Load(s.temperature, s.rate) == load)

    @property
    def basis(self) -> str:
        """`From 24 cells of 40 requests each`: what charts of all cells that may count rest on."""
        fit = [cell.requests for cell in self.summary.cells if not barred(cell)]
        if not fit:
            return "From no cell: none may count"
        low, high = min(fit), max(fit)
        each = count(low, "request") if low == high else f"{low:,} to {high:,} requests"
        return f"From {count(len(fit), 'cell')} of {each} each"

    def where(self, setting: Setting) -> str:
        """`context 900, concurrency 8`, then what `conditions` adds."""
        text = f"context {setting.context}, concurrency {setting.concurrency}"
        return text + self.conditions(setting)

    def label(self, setting: Setting) -> str:
        """`where` as a title."""
        text = self.where(setting)
        return text[:1].upper() + text[1:]

    def conditions(self, at: Setting | Load) -> str:
        """`, temperature 0.7, 4 requests/s`: the one unless all is greedy, the other where open."""
        text = "" if self.is_greedy else f", temperature {at.temperature:g}"
        return text + (f", {at.rate:g} requests/s" if at.rate else "")


def arrange(summary: RunSummary) -> Run:
    """Index a summary. ConfigError where two cells claim the same arm and setting."""
    cells: dict[tuple[Setting, Arm], CellSummary] = {}
    for cell in summary.cells:
        key = (setting_of(cell), cell.arm)
        if key in cells:
            raise ConfigError(
                f"summary: two cells for {cell.place}; expected one, make the summary again from "
                "the run folder"
            )
        cells[key] = cell
    arms = tuple(sorted({cell.arm for cell in summary.cells}, key=lambda arm: arm.size))
    baselines = [c.arm for c in summary.cells if c.losslessness.grade == "baseline"]
    return Run(
        summary=summary,
        cells=cells,
        settings=tuple(sorted({setting for setting, _ in cells})),
        arms=arms,
        baseline=baselines[0] if baselines else Arm("ar"),
    )


def setting_of(what: CellSummary | Choice | Control) -> Setting:
    """Where a cell or control was measured, or what a choice is for."""
    return what.setting


def barred(cell: CellSummary) -> str:
    """Why a cell's speed cannot count, in a few words; empty for one that is valid and lossless."""
    if cell.state in ("planned", "running"):
        return "not finished"
    if cell.state != "ok":
        return f"{cell.state}: {cell.reason}" if cell.reason else cell.state
    found = cell.losslessness
    if cell.is_lossless or (found.grade == "baseline" and not (found.bugs or found.suspects)):
        return ""
    if found.grade == "unclassified":
        return "losslessness not classified"
    counts = ((found.bugs, "bug"), (found.suspects, "suspect"))
    faults = [count(n, noun) for n, noun in counts if n]
    if found.grade in ("exact", "near-ties") and not faults:
        return "no output compared"
    return f"not lossless: {', '.join(faults)}" if faults else "not lossless"


def barred_word(cell: CellSummary) -> str:
    """`barred` in a word or two, short enough for a square of the heat map."""
    if cell.state == "ok" and cell.losslessness.grade == "unclassified":
        return "unclassified"
    return barred(cell).split(":", maxsplit=1)[0]


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
