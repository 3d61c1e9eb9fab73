"""The run's summary inside the page, for a reader who wants to compute with it.

Lists with an item per cell are folded into tables, so that a name stands once and not once a cell:
`{"columns": ["context", "speedup_interval.low", ...], "rows": [[...], ...]}`. A dot in a column's
name leads into the object of the name before it, which is null where all its columns are. The
page's script undoes it when the data is saved; the result is a run's `summary.json`.
"""

import dataclasses
import json
import math
from typing import Any

from ddtree.records.evals import EvalSummary
from ddtree.records.summary import RunSummary

DIGITS = 6
"""Significant digits of the page's numbers: more than any measurement here holds."""
FOLDED = ("cells", "screened", "predictions")
_VERBATIM = ("spec", "provenance")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page_data(summary: RunSummary) -> str:
    """The summary as compact JSON: floats to DIGITS places, null for what is no finite number.

    It can stand in a `<script>` element: no character in it can open or close a tag.
    """
    fields = dataclasses.asdict(summary)
    data = {name: _plain(value, name not in _VERBATIM) for name, value in fields.items()}
    return _embedded(data | {name: _fold(data[name]) for name in FOLDED})


def plain_data(summary: EvalSummary) -> str:
    """An evaluation's summary in the same way; none of its lists is long enough to be folded."""
    return _embedded(_plain(json.loads(summary.to_json()), rounded=True))


def _embedded(data: dict[str, Any]) -> str:
    text = json.dumps(data, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text


def _fold(items: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A table of objects of the same names."""
    columns = [column for name in items[0] for column in _columns(name, items)] if items else []
    rows = [[_at(item, column) for column in columns] for item in items]
    return {"columns": columns, "rows": rows}


def _columns(name: str, items: list[dict[str, Any]]) -> list[str]:
    """One column, or one for each name inside where all items have the same object there."""
    values = [item[name] for item in items if item[name] is not None]
    inner = tuple(values[0]) if values and isinstance(values[0], dict) else ()
    if not inner or any(tuple(value) != inner for value in values):
        return [name]
    return [f"{name}.{key}" for key in inner]


def _at(item: dict[str, Any], column: str) -> Any:
    name, dot, key = column.partition(".")
    return item[name] if not dot or item[name] is None else item[name][key]


def _plain(value: Any, rounded: bool) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner, rounded) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, rounded) for inner in value]
    if not isinstance(value, float) or value == 0:
        return value
    if not math.isfinite(value):
        return None
    digits = DIGITS - 1 - math.floor(math.log10(abs(value)))
    return round(value, max(0, digits)) if rounded else value
