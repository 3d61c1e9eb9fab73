"""What an evaluation asks for, and the file in its folder that says so."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.files import write_atomic
from ddtree.records.sampling import Sampling

SPEC_FILE = "eval.yaml"

Prompting = Literal["chat", "completion"]
BASELINE = Arm("ar")


@dataclass(frozen=True)
class EvalSpec:
    """`arms` begin with the baseline. `suite_sha256` is of the file the tasks came from; `limit`
    takes the first tasks only; `since` and `until` (days, as ISO writes them) bound a dated suite.

    `template` are variables of the chat template, a thinking switch among them: `thinking` None
    leaves the model's default, and otherwise the answers are checked for it. `samples` answers are
    drawn for each task, each with a seed of its own that is the same for every arm. With `noise`
    the baseline runs twice.
    """

    suite: str
    suite_sha256: str
    model: str
    dtype: str
    arms: tuple[Arm, ...]
    prompting: Prompting
    thinking: bool | None
    template: tuple[tuple[str, Any], ...]
    sampling: Sampling
    samples: int
    max_tokens: int
    concurrency: int
    limit: int | None
    noise: bool
    seed: int
    since: str | None = None
    until: str | None = None

    def __post_init__(self) -> None:
        if self.arms[:1] != (BASELINE,):
            raise ConfigError("arms: the first must be ar, which others are compared with")
        if len(set(self.arms)) != len(self.arms):
            raise ConfigError("arms: one comes twice")
        if self.prompting not in get_args(Prompting):
            raise ConfigError(f"prompting: got {self.prompting!r}, expected chat or completion")
        for name in ("samples", "max_tokens", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.samples > 1 and self.sampling.temperature == 0:
            raise ConfigError(
                f"samples: greedy answers are all the same, got {self.samples} of them; give a "
                "temperature"
            )
        if self.thinking is not None and "enable_thinking" in dict(self.template):
            raise ConfigError("template: enable_thinking is what thinking sets; give one of them")
        if self.prompting == "completion" and (self.template or self.thinking is not None):
            raise ConfigError("prompting: a completion has no chat template to switch thinking in")

    @property
    def variables(self) -> tuple[tuple[str, Any], ...]:
        """The chat template's variables, the thinking switch included."""
        if self.thinking is None:
            return self.template
        return (*self.template, ("enable_thinking", self.thinking))

    def to_dict(self) -> dict[str, Any]:
        """As in the file."""
        fields = dataclasses.asdict(self)
        fields["arms"] = [arm.to_request() for arm in self.arms]
        fields["template"] = dict(self.template)
        return fields

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        return cls(
            **{
                **data,
                "arms": tuple(Arm(**arm) for arm in data["arms"]),
                "template": tuple(data["template"].items()),
                "sampling": Sampling(**data["sampling"]),
            }
        )


def claim(folder: Path, spec: EvalSpec) -> None:
    """Write the specification, or check that the folder holds a run of the same.

    ConfigError names what differs.
    """
    path = folder / SPEC_FILE
    if not path.exists():
        write_atomic(path, yaml.safe_dump(spec.to_dict(), sort_keys=False))
        return
    old, new = read_spec(folder).to_dict(), spec.to_dict()
    changed = [
        f"{k}: {json.dumps(old[k])}, now {json.dumps(new[k])}" for k in new if old[k] != new[k]
    ]
    if changed:
        raise ConfigError(
            f"{folder}: holds another evaluation ({'; '.join(changed)}); use another folder"
        )


def read_spec(folder: Path) -> EvalSpec:
    """The specification in a run's folder; ConfigError where there is none that can be read."""
    path = folder / SPEC_FILE
    try:
        return EvalSpec.from_dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: no evaluation can be read there ({error})") from None
