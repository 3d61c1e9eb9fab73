"""Why an arm is as fast as it is: acceptance over the cost of a round, and what its nodes do."""

from dataclasses import replace

from ddtree.records.summary import CellSummary, TreeUse
from ddtree.report.grid import Column, Table, detailed, row_of
from ddtree.report.numbers import Shown, is_number, number, percent, times
from ddtree.report.run import Run, barred

RANKS = 4
"""Candidate ranks with a column of their own; the last one holds all further ranks too."""


def cause_table(run: Run) -> Table:
    """Speed-up = acceptance gain / round cost x rest, of the cells that may count."""
    cells = [cell for cell in detailed(run) if not barred(cell) and _parts(cell) is not None]
    longest = max((max(_parts(cell) or (0.0,)) for cell in cells), default=1.0)
    columns = (
        Column("Requests"),
        Column("Speed-up"),
        Column("Acceptance gain", "tokens per round"),
        Column("Round cost", "steps of ar"),
        Column("Gain / cost"),
        Column("Rest", "outside rounds"),
    )
    rows = tuple(row_of(run, cell, _causes(cell, longest)) for cell in cells)
    lead = (
        "Speed-up = acceptance gain / round cost × rest. The gain is tokens per round over the "
        "baseline's 1, the cost a round's seconds over those of a step of the baseline; both bars "
        "share one scale, and an arm gains where the first is longer. The rest is what lies "
        "outside rounds and, above concurrency 1, what a batch of requests in different states "
        "loses or gains. Valid, lossless cells alone."
    )
    return Table("causes", "Speed-up taken apart", columns, rows, lead)


def _parts(cell: CellSummary) -> tuple[float, float] | None:
    gain, cost = cell.acceptance_gain, cell.round_cost
    if cell.arm.method == "ar" or gain is None or cost is None:
        return None
    return (gain, cost) if is_number(gain) and is_number(cost) and cost > 0 else None


def _causes(cell: CellSummary, longest: float) -> tuple[Shown, ...]:
    gain, cost = _parts(cell) or (0.0, 1.0)
    rest = cell.speedup / (gain / cost) if cell.speedup is not None and gain else None
    none = "no pairs to compare"
    return (
        Shown(f"{cell.requests:,}"),
        times(cell.speedup, cell.speedup_interval, none),
        replace(number(gain, 2, none), bar=100 * gain / longest),
        replace(number(cost, 2, none), bar=100 * cost / longest),
        number(gain / cost, 2, none),
        number(rest, 2, none),
    )


def tree_table(run: Run) -> Table:
    """What the draft nodes were good for, of the cells that may count."""
    columns = (
        Column("Requests"),
        Column("Acceptance length"),
        Column("Top-1 chain of it"),
        Column("Rounds rescued", "left the chain"),
        Column("Nodes accepted", "of verified"),
        *(Column("Accepted, rank", name) for name in _rank_names()),
        Column("Lost at half the budget", "tokens per round"),
    )
    rows = tuple(
        row_of(run, cell, _use(cell, cell.tree))
        for cell in detailed(run)
        if not barred(cell) and cell.tree is not None
    )
    lead = (
        "The acceptance length, and what the top-1 part of the accepted paths alone would have "
        "had. A round is rescued where its accepted path leaves that top-1 chain. Accepted nodes "
        "are shared out by their rank among the drafter's candidates at their depth, 0 being its "
        "first. The last column is what a tree of half as many nodes would have lost in the same "
        "rounds. Valid, lossless cells alone."
    )
    return Table("tree-use", "Tree use", columns, rows, lead)


def _rank_names() -> list[str]:
    return [*(str(rank) for rank in range(RANKS - 1)), f"{RANKS - 1} and on"]


def _use(cell: CellSummary, tree: TreeUse) -> tuple[Shown, ...]:
    ranks = tree.accepted_ranks
    shares = [*ranks[: RANKS - 1], *([0.0] * (RANKS - 1 - len(ranks))), sum(ranks[RANKS - 1 :])]
    nothing = "no node was accepted"
    gains = tree.gain_by_node
    lost = sum(gains[(len(gains) + 1) // 2 :]) if gains else None
    return (
        Shown(f"{cell.requests:,}"),
        number(cell.acceptance_length, 2, "not reported"),
        number(tree.chain_length, 2, "not reported"),
        percent(tree.rescued, 1, "not reported"),
        percent(tree.node_use, 1, "not reported"),
        *(percent(share if ranks else None, 1, nothing) for share in shares),
        number(lost, 2, "places of nodes not reported"),
    )
