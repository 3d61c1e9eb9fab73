"""One line of `ddtree doctor`."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Check:
    """`note` can be lived with; `missing` is required. `advice` says what to do, as a command
    where one does it."""

    name: str
    status: Status
    value: str
    advice: str | None = None


def as_json_object(checks: Sequence[Check]) -> dict[str, object]:
    """`ok` is False if anything required is missing."""
    return {
        "ok": all(check.status != "missing" for check in checks),
        "checks": [dataclasses.asdict(check) for check in checks],
    }
