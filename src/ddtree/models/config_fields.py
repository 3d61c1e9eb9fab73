"""Typed reading of a checkpoint's config.json, with errors that name the key."""

import math
from collections.abc import Mapping

from ddtree.errors import ModelError

NESTED_KEY = "dflash_config"


class ConfigFields:
    """The keys of a config.json, looked up at top level and inside `dflash_config`.

    A key counts as absent where its value is null. A key that is present more than once with
    different values, in either place or under either of two spellings, raises.
    """

    def __init__(self, fields: Mapping[str, object], source: str) -> None:
        nested = fields.get(NESTED_KEY)
        if nested is not None and not isinstance(nested, dict):
            raise ModelError(
                f"{source}: {NESTED_KEY}: got {nested!r}, expected an object with the "
                "drafter's own keys"
            )
        self.source = source
        self._places: tuple[tuple[str, Mapping[str, object]], ...] = (
            ("", fields),
            (f"{NESTED_KEY}.", nested or {}),
        )

    def error(self, key: str, got: object, expected: str) -> ModelError:
        """The error for a key whose value can't be used; for the caller to raise."""
        return ModelError(f"{self.source}: {key}: got {got!r}, expected {expected}")

    def value(self, *names: str) -> object:
        """The value under any of `names` (spellings of one key), None if absent everywhere."""
        found = [
            (f"{prefix}{name}", place[name])
            for prefix, place in self._places
            for name in names
            if place.get(name) is not None
        ]
        if not found:
            return None
        first_key, first = found[0]
        for key, other in found[1:]:
            if type(other) is not type(first) or other != first:
                raise ModelError(
                    f"{self.source}: {first_key} is {first!r} but {key} is {other!r}; "
                    "remove the wrong one"
                )
        return first

    def optional_integer(self, *names: str, minimum: int) -> int | None:
        """An integer of at least `minimum`, or None if absent."""
        value = self.value(*names)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(names[0], value, f"an integer >= {minimum}")
        return value

    def integer(self, *names: str, minimum: int) -> int:
        """An integer of at least `minimum` that must be present."""
        value = self.optional_integer(*names, minimum=minimum)
        if value is None:
            raise self._missing(names[0], f"an integer >= {minimum}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers that must be present."""
        value = self.value(name)
        if value is None:
            raise self._missing(name, "a list of integers")
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise self.error(name, value, "a list of integers")
        return tuple(value)

    def positive(self, name: str) -> float:
        """A finite number above 0 that must be present."""
        value = self.value(name)
        if value is None:
            raise self._missing(name, "a number above 0")
        return positive_number(self, name, value)

    def boolean(self, name: str, default: bool) -> bool:
        """True or false; `default` if absent."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def _missing(self, key: str, expected: str) -> ModelError:
        return ModelError(
            f"{self.source}: {key} is missing (looked at top level and in {NESTED_KEY}), "
            f"expected {expected}"
        )


def positive_number(fields: ConfigFields, key: str, value: object) -> float:
    """`value` as a finite float above 0; the error names `key`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise fields.error(key, value, "a number above 0")
    if not math.isfinite(value) or value <= 0:
        raise fields.error(key, value, "a finite number above 0")
    return float(value)
