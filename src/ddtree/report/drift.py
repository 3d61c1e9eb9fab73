"""The repeated baseline: whether the machine stayed the same over a run."""

from ddtree.report.charts import Axis, Line, Panel, draw
from ddtree.report.curves import Chart, level_guide
from ddtree.report.numbers import count, fixed, is_number
from ddtree.report.run import Run
from ddtree.report.series import numbered

DRIFT_BAND = 0.03
"""How far from 1 a sentinel may be before the machine counts as having drifted."""
_LEVELS = (1 - DRIFT_BAND, 1.0, 1 + DRIFT_BAND)


def drift_chart(run: Run) -> Chart | None:
    """The sentinels over the run, between the ends of the band; None for fewer than two."""
    sentinels = sorted(run.summary.sentinels, key=lambda sentinel: sentinel.place)
    points = tuple((float(s.place), s.ratio) for s in sentinels if is_number(s.ratio))
    if len(points) < 2:
        return None
    off = max(abs(y - 1) for _, y in points)
    reach = 1.15 * max(off, 1.2 * DRIFT_BAND)
    x = [int(at) for at, _ in points]
    guides = [guide for level in _LEVELS for guide in level_guide(level, x)]
    panel = Panel(
        slug="drift",
        x=Axis("blocks of the run behind it"),
        y=Axis("speed of the sentinel over its first", low=1 - reach, high=1 + reach),
        lines=(Line("sentinel", numbered(0), points),),
        description="; ".join(f"{fixed(y, 3)} after {at:g} blocks" for at, y in points) + ".",
        guides=tuple(guides),
    )
    return Chart("The same baseline, again and again", draw(panel))


def drift_text(run: Run) -> str:
    """How many sentinels there are and how far they went; empty where the run has none."""
    ratios = [s.ratio for s in run.summary.sentinels if is_number(s.ratio)]
    if not ratios:
        return ""
    off = sum(1 for ratio in ratios if abs(ratio - 1) > DRIFT_BAND)
    return (
        f"{count(len(ratios), 'measurement')} of ar at one setting: "
        f"{fixed(min(ratios), 3)} to {fixed(max(ratios), 3)} times the first, {off} of them "
        f"further than {100 * DRIFT_BAND:g} % from it."
    )
