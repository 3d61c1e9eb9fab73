"""How much of a large run is drawn. What is left out is counted; its numbers stay on the page."""

from collections.abc import Sequence
from typing import TypeVar

from ddtree.report.numbers import count

Item = TypeVar("Item")

CHARTS = 12
"""As many charts of one kind, or bars and maps by setting, as a section draws."""
OPEN = 12
"""As many blocks by setting as stand open; where there are more each is folded under its title."""
ROWS = 400
"""As many rows as a table has before it is folded under its title."""
DETAIL = 640
"""As many rows as a table of details has; of a larger run it holds each setting's fastest arms."""
LINES = 40
"""As many arms as a run may have before those that share the grey line are left out of charts."""


def spread(items: Sequence[Item], limit: int = CHARTS) -> tuple[Item, ...]:
    """At most `limit` items, evenly spread, with the first and the last among them."""
    if len(items) <= limit:
        return tuple(items)
    last = len(items) - 1
    return tuple(items[round(i * last / (limit - 1))] for i in range(limit))


def left_out(drawn: int, total: int, what: str) -> str:
    """What a reader is told where not all is drawn; empty where it is."""
    if drawn >= total:
        return ""
    return (
        f"{drawn} of {count(total, what)} drawn, spread over the run; the numbers of the rest are "
        "in the tables and in the page's data."
    )
