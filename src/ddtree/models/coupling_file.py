"""How a drafter's candidates are weighed against the noise of the target's draw, per temperature
and depth: `coupling.json` beside its checkpoint.

The numbers are fitted to one drafter and one target (benchmarks/coupled_drafting.py). They shape
draft trees and never what comes out.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from ddtree.errors import ModelError

FILE_NAME = "coupling.json"


@dataclass(frozen=True)
class DepthWeights:
    """The coefficients a, b and c of `ddtree.core.coupling` at depths 1 to D."""

    log_q: tuple[float, ...]
    noise: tuple[float, ...]
    rest: tuple[float, ...]

    @property
    def is_plain(self) -> bool:
        """Whether this is the drafter's own distribution."""
        return all(a == 1 for a in self.log_q) and not any(self.noise)


@dataclass(frozen=True)
class Calibration:
    """Weights at some temperatures, ascending."""

    temperatures: tuple[float, ...]
    weights: tuple[DepthWeights, ...]

    def at(self, temperature: float) -> DepthWeights | None:
        """Weights at a temperature; None where ranking by probability is what is known to be best:
        at 0, below the lowest one listed, and where the file says so.

        Linear between two listed ones in 1 / temperature, in which a is linear if the drafter's
        error does not depend on it; the highest one's above it.
        """
        if temperature <= 0 or temperature < self.temperatures[0]:
            return None
        found = self.weights[-1]
        points = zip(self.temperatures, self.weights, strict=True)
        for (low, cold), (high, hot) in pairwise(points):
            if low <= temperature < high:
                share = (1 / low - 1 / temperature) / (1 / low - 1 / high)
                found = _between(cold, hot, share)
        return None if found.is_plain else found


class _Entry(BaseModel):
    """One temperature."""

    model_config = ConfigDict(extra="forbid", strict=True)
    temperature: Annotated[FiniteFloat, Field(gt=0)]
    log_q: list[Annotated[FiniteFloat, Field(gt=0)]]
    noise: list[Annotated[FiniteFloat, Field(ge=0)]]
    rest: list[FiniteFloat]


class _File(BaseModel):
    """The file; `fitted_on` says where the numbers are from, for readers."""

    model_config = ConfigDict(extra="forbid", strict=True)
    schema_version: Literal[1]
    fitted_on: dict[str, object]
    weights: Annotated[list[_Entry], Field(min_length=1)]


def load_calibration(folder: Path, depth: int) -> Calibration | None:
    """The calibration beside a checkpoint that drafts `depth` tokens; None if there is none, which
    ranks candidates by probability. ModelError names the file and what is wrong with it."""
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    advice = "put the right file there, or remove it to rank candidates by probability"
    try:
        entries = _File.model_validate_json(path.read_bytes()).weights
    except OSError as error:
        raise ModelError(f"{path}: can't be read ({error}); {advice}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ModelError(f"{path}: {where}: {first['msg']}; {advice}") from error
    for entry in entries:
        for name in ("log_q", "noise", "rest"):
            count = len(getattr(entry, name))
            if count != depth:
                raise ModelError(
                    f"{path}: {name} at temperature {entry.temperature:g} has {count} numbers, "
                    f"this drafter has {depth} depths; {advice}"
                )
    temperatures = tuple(entry.temperature for entry in entries)
    if any(low >= high for low, high in pairwise(temperatures)):
        raise ModelError(f"{path}: temperatures {temperatures} do not ascend; {advice}")
    weights = [DepthWeights(tuple(e.log_q), tuple(e.noise), tuple(e.rest)) for e in entries]
    return Calibration(temperatures, tuple(weights))


def _between(cold: DepthWeights, hot: DepthWeights, share: float) -> DepthWeights:
    """The weights `share` of the way from `cold` to `hot`."""

    def blend(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(a + share * (b - a) for a, b in zip(one, other, strict=True))

    return DepthWeights(
        blend(cold.log_q, hot.log_q), blend(cold.noise, hot.noise), blend(cold.rest, hot.rest)
    )
