"""Which speculation to use where: what `bench recommend` writes and `serve --schedule` obeys."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm

SCHEDULE_VERSION = 1

FALLBACK = Arm("ar")
"""What a temperature gets for which the schedule has no entry: nothing was proven there."""

_ENTRY = {"context", "concurrency", "temperature", "speculation"}
_OPTIONAL = {"speedup"}
_FILE = {"schema_version", "model", "entries"}


@dataclass(frozen=True)
class ScheduleEntry:
    """The arm for one setting; `speedup` over `ar` as measured, for readers only."""

    context: int
    concurrency: int
    temperature: float
    arm: Arm
    speedup: float | None = None

    @property
    def place(self) -> tuple[int, int, float]:
        """No two entries of a schedule have the same."""
        return self.context, self.concurrency, self.temperature

    def to_dict(self) -> dict[str, Any]:
        """As in the file."""
        return {
            "context": self.context,
            "concurrency": self.concurrency,
            "temperature": self.temperature,
            "speculation": self.arm.to_request(),
            "speedup": self.speedup,
        }


@dataclass(frozen=True)
class Schedule:
    """`model` is the name that the benchmark's server was started with. Entries are never empty."""

    model: str
    entries: tuple[ScheduleEntry, ...]

    def choose(self, prompt_tokens: int, running: int, temperature: float) -> Arm:
        """The arm for a request; `running` counts it and the requests beside it.

        Temperature 0 is served by entries at 0 alone, a temperature above 0 by those at the
        nearest one above 0 (of two as near the lower); where there are none, FALLBACK. Of these
        the largest context that the prompt reaches counts, or the smallest there is; of these the
        nearest concurrency on a log scale, of two as near the higher.
        """
        fitting = _at_temperature(self.entries, temperature)
        if not fitting:
            return FALLBACK
        reached = [e.context for e in fitting if e.context <= prompt_tokens]
        context = max(reached) if reached else min(e.context for e in fitting)
        here = [entry for entry in fitting if entry.context == context]
        return min(here, key=lambda e: (_distance(e.concurrency, running), -e.concurrency)).arm

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as for JSON; `parse_schedule` reads them back."""
        entries = [entry.to_dict() for entry in self.entries]
        return {"schema_version": SCHEDULE_VERSION, "model": self.model, "entries": entries}

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(self.to_dict(), indent=1) + "\n"


def parse_schedule(text: str, source: str) -> Schedule:
    """A schedule from a file's text; ConfigError names `source` and the entry at fault."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not JSON ({error})") from None
    if not isinstance(data, dict) or data.get("schema_version") != SCHEDULE_VERSION:
        found = data.get("schema_version") if isinstance(data, dict) else None
        raise ConfigError(
            f"{source}: schema_version {found!r}, expected {SCHEDULE_VERSION}; write the schedule "
            "with `ddtree bench recommend --schedule` of this version"
        )
    _check_names(data, _FILE, set(), source)
    if not isinstance(data["model"], str):
        raise ConfigError(f"{source}: model: got {data['model']!r}, expected a name")
    if not isinstance(data["entries"], list) or not data["entries"]:
        raise ConfigError(f"{source}: entries: expected a list of at least one entry")
    entries = tuple(
        _entry(item, f"{source}: entry {number}") for number, item in enumerate(data["entries"])
    )
    places = [entry.place for entry in entries]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ConfigError(
                f"{source}: entry {number}: context {place[0]}, concurrency {place[1]} and "
                f"temperature {place[2]:g} are there already, in entry {places.index(place)}"
            )
    return Schedule(data["model"], entries)


def _entry(item: object, where: str) -> ScheduleEntry:
    if not isinstance(item, dict):
        raise ConfigError(f"{where}: got {item!r}, expected an object")
    _check_names(item, _ENTRY, _OPTIONAL, where)
    context, concurrency = (_count(item, name, where) for name in ("context", "concurrency"))
    temperature, speedup = item["temperature"], item.get("speedup")
    if not _is_number(temperature) or temperature < 0:
        raise ConfigError(f"{where}: temperature: got {temperature!r}, expected a number >= 0")
    if speedup is not None and not _is_number(speedup):
        raise ConfigError(f"{where}: speedup: got {speedup!r}, expected a number")
    return ScheduleEntry(
        context, concurrency, float(temperature), _arm(item["speculation"], where), speedup
    )


def _arm(fields: object, where: str) -> Arm:
    if not isinstance(fields, dict):
        raise ConfigError(f"{where}: speculation: got {fields!r}, expected an object")
    for name in ("budget", "topk"):
        if fields.get(name) is not None:
            _count(fields, name, f"{where}: speculation")
    window = fields.get("draft_window")
    if window is not None and window != "full":
        _count(fields, "draft_window", f"{where}: speculation")
    if "method" not in fields:
        raise ConfigError(f"{where}: speculation: method is missing")
    try:
        return Arm.from_dict(fields)
    except ConfigError as error:
        raise ConfigError(f"{where}: speculation: {error}") from None


def _check_names(item: dict[str, Any], needed: set[str], more: set[str], where: str) -> None:
    missing, unknown = needed - item.keys(), item.keys() - needed - more
    if missing:
        raise ConfigError(f"{where}: {sorted(missing)[0]} is missing")
    if unknown:
        known = ", ".join(sorted(needed | more))
        raise ConfigError(f"{where}: {sorted(unknown)[0]!r} is unknown; known are {known}")


def _count(item: dict[str, Any], name: str, where: str) -> int:
    value = item[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}: {name}: got {value!r}, expected a whole number >= 1")
    return value


def _is_number(value: object) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value)  # type: ignore[arg-type]


def _at_temperature(entries: Sequence[ScheduleEntry], temperature: float) -> list[ScheduleEntry]:
    if temperature == 0:
        return [entry for entry in entries if entry.temperature == 0]
    sampled = [entry.temperature for entry in entries if entry.temperature > 0]
    if not sampled:
        return []
    nearest = min(sampled, key=lambda known: (abs(known - temperature), known))
    return [entry for entry in entries if entry.temperature == nearest]


def _distance(concurrency: int, running: int) -> float:
    """On a log scale, free of rounding: 2 and 8 are equally far from 4."""
    return max(concurrency / running, running / concurrency)
