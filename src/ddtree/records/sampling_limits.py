"""What each sampling field may hold: one table for records, engine and server alike.

Limits of a single field. What depends on others (min_tokens on max_tokens) or on the model (token
ids on the vocabulary) is the engine's to check.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SEED_BITS = 63
LARGEST = 2**SEED_BITS - 1
# Tokens of an answer that names no limit.
UNLIMITED = 2**31 - 1
# Longer integers are not written out: Python refuses to beyond some thousand digits.
_SHOWN_BITS = 256


@dataclass(frozen=True)
class Limit:
    """Finite numbers from `low`, which `above` leaves out, to `high`. `whole`: integers alone; True
    is none, and no number either."""

    low: float
    high: float = sys.float_info.max
    whole: bool = False
    above: bool = False

    @property
    def is_open(self) -> bool:
        """Whether `high` is the largest number there is, and no choice."""
        return self.high == (LARGEST if self.whole else sys.float_info.max)

    def problem(self, value: object) -> str | None:
        """What is wrong with a value and what was expected; None for one within the limit."""
        kinds = int if self.whole else (int, float)
        # Comparisons alone: an integer may be too large for a float, and NaN is never in a range.
        if (
            isinstance(value, kinds)
            and not isinstance(value, bool)
            and self.low <= value <= self.high
            and (value > self.low or not self.above)
        ):
            return None
        return f"got {_shown(value)}, expected {self}"

    def __str__(self) -> str:
        """In words."""
        if self.whole:
            ends = f"of at least {self.low}" if self.is_open else f"from {self.low} to {self.high}"
            return f"an integer {ends}"
        low = f"above {self.low:g}" if self.above else f"of at least {self.low:g}"
        return f"a finite number {low}" + ("" if self.is_open else f" and at most {self.high:g}")


LIMITS: Mapping[str, Limit] = {
    "temperature": Limit(0.0),
    "top_p": Limit(0.0, 1.0, above=True),
    # 0 and -1 keep all.
    "top_k": Limit(-1, LARGEST, whole=True),
    "min_p": Limit(0.0, 1.0),
    "repetition_penalty": Limit(0.01, 2.0),
    "presence_penalty": Limit(-2.0, 2.0),
    "frequency_penalty": Limit(-2.0, 2.0),
    "min_tokens": Limit(0, UNLIMITED, whole=True),
    "seed": Limit(0, LARGEST, whole=True),
}
TOKEN_ID = Limit(0, LARGEST, whole=True)
BIAS = Limit(-100.0, 100.0)


def problems(sampling: object) -> Iterator[tuple[str, str]]:
    """(field, what is wrong with it) of an object with the fields of the table; a seed may be
    None."""
    for name, limit in LIMITS.items():
        value = getattr(sampling, name)
        found = None if name == "seed" and value is None else limit.problem(value)
        if found is not None:
            yield name, found


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)
