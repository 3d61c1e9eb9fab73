"""What each node of the trees brought: the acceptance length that smaller trees would have had."""

from dataclasses import replace
from itertools import accumulate

from ddtree.records.arms import Arm
from ddtree.records.settings import Setting
from ddtree.report.charts import Axis, Line, Panel, draw
from ddtree.report.curves import Chart, Charts, describe
from ddtree.report.limits import left_out, spread
from ddtree.report.run import Run, barred
from ddtree.report.series import Series


def node_charts(run: Run, looks: dict[Arm, Series]) -> Charts:
    """One chart per setting with trees: the acceptance length had they been cut to n nodes."""
    lines = {setting: _node_lines(run, setting, looks) for setting in run.settings}
    settings = [setting for setting in run.settings if lines[setting]]
    drawn = spread(settings)
    charts = tuple(
        Chart(
            run.label(setting),
            draw(
                Panel(
                    slug=f"nodes-{setting.slug}",
                    x=Axis("nodes kept of a round's tree, in best-first order", low=0.0),
                    y=Axis("acceptance length", low=1.0),
                    lines=lines[setting],
                    description=describe(lines[setting], "acceptance length", "node"),
                )
            ),
        )
        for setting in drawn
    )
    return Charts(charts, not_drawn=left_out(len(drawn), len(settings), "chart"))


def _node_lines(run: Run, setting: Setting, looks: dict[Arm, Series]) -> tuple[Line, ...]:
    found = []
    for cell in run.at(setting):
        if barred(cell) or cell.tree is None or not cell.tree.gain_by_node:
            continue
        if not looks[cell.arm].shown:
            continue
        lengths = accumulate(cell.tree.gain_by_node, initial=1.0)
        look = replace(looks[cell.arm], marker="")
        points = tuple((float(n), length) for n, length in enumerate(lengths))
        found.append(Line(cell.arm.label, look, points))
    return tuple(found)
