"""How numbers spread over requests and prompts, and what was observed while they were measured."""

from collections.abc import Callable
from itertools import product

from ddtree.records.summary import CellSummary, Spread
from ddtree.report.grid import Column, Table, detailed, ordered, row_of
from ddtree.report.numbers import N_TOO_SMALL, Shown, is_number, milliseconds, missing, number
from ddtree.report.run import Run, barred

QUANTILES = ("p10", "p50", "p90", "p95", "p99")
LATENCIES: tuple[tuple[str, int, Callable[[CellSummary], Spread | None]], ...] = (
    ("First token", 1, lambda cell: cell.ttft),
    ("Per output token", 2, lambda cell: cell.tpot),
    ("End to end", 0, lambda cell: cell.end_to_end),
)
DECILES = tuple(f"p{10 * n}" for n in range(1, 10))
SOURCES = {"server": "the server", "counters": "counters", "estimate": "estimate"}


def quantile_table(run: Run) -> Table:
    """Milliseconds by quantile: time to first token, per output token, end to end."""
    titles = [f"{title}, ms" for title, _, _ in LATENCIES]
    columns = (Column("Requests"), *(Column(*pair) for pair in product(titles, QUANTILES)))
    rows = tuple(
        row_of(run, cell, _quantiles(cell))
        for cell in detailed(run)
        if any(get(cell) is not None for _, _, get in LATENCIES)
    )
    lead = (
        "Over requests, in milliseconds on the client's clock. A quantile "
        "that so many requests can't bound is a dash."
    )
    return Table("quantiles", "Quantiles of latency", columns, rows, lead)


def _quantiles(cell: CellSummary) -> tuple[Shown, ...]:
    found = [(digits, get(cell)) for _, digits, get in LATENCIES]
    counts = [spread.count for _, spread in found if spread is not None]
    values = [
        _quantile(spread, name, digits) for (digits, spread), name in product(found, QUANTILES)
    ]
    return (Shown(f"{max(counts, default=0):,}"), *values)


def _quantile(spread: Spread | None, name: str, digits: int) -> Shown:
    if spread is None:
        return missing("not measured")
    return milliseconds(getattr(spread, name), digits, N_TOO_SMALL)


def decile_table(run: Run) -> Table:
    """Speed-up by decile of the prompts."""
    columns = (Column("Speed-up"), *(Column("Prompts", name) for name in DECILES))
    rows = tuple(
        row_of(
            run,
            cell,
            (
                number(cell.speedup, 2, barred(cell) or "no pairs to compare"),
                *(number(value, 2, "no number") for value in cell.ratio_deciles),
            ),
        )
        for cell in detailed(run)
        if len(cell.ratio_deciles) == len(DECILES)
    )
    lead = (
        "The decode ratio of each prompt against the baseline's: a tenth of the prompts gain less "
        "than p10 says, a tenth more than p90."
    )
    return Table("deciles", "Speed-up across prompts", columns, rows, lead)


def observed_table(run: Run) -> Table:
    """What a reader should know of a cell before its numbers: load, caches, sources, flags."""
    columns = (
        Column("Achieved concurrency"),
        Column("Client's lag, ms", "p99"),
        Column("Cached tokens"),
        Column("Rounds counted by", text=True),
        Column("Flags", text=True),
    )
    kept = {(cell.setting, cell.arm) for cell in detailed(run)}
    rows = tuple(
        row_of(run, cell, _observed(cell))
        for cell in ordered(run)
        if cell.flags or ((cell.setting, cell.arm) in kept and _is_observed(cell))
    )
    lead = (
        "Requests in flight on average, how late the client's own loop ran, prompt tokens that a "
        "cache had, and what else a reader should know. None of it makes a cell invalid."
    )
    return Table("observed", "What was observed while measuring", columns, rows, lead)


def _is_observed(cell: CellSummary) -> bool:
    known = (cell.achieved_concurrency, cell.loop_lag_s, cell.cached_tokens)
    return bool(cell.flags) or any(is_number(value) for value in known)


def _observed(cell: CellSummary) -> tuple[Shown, ...]:
    source = cell.acceptance_source
    return (
        number(cell.achieved_concurrency, 2, "not observed"),
        milliseconds(cell.loop_lag_s, 2, "not observed"),
        number(cell.cached_tokens, 0, "the server doesn't say"),
        missing("no rounds counted") if source is None else Shown(SOURCES[source]),
        Shown("; ".join(cell.flags)),
    )
