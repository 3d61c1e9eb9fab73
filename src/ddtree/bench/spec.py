"""The benchmark's specification: a YAML file, checked key by key, to one frozen value."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling

Workload = Literal["code", "text", "mixed"]
Dtype = Literal["float32", "bfloat16"]

_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]
_Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Window = _Count | Literal["full"] | None
# Settings that a cell has one value of each.
_LISTS = ("contexts", "concurrencies", "temperatures")


@dataclass(frozen=True)
class DeadlineSpec:
    """Seconds: to the first token, between chunks with tokens, per request, to readiness."""

    first_token_s: float
    silence_s: float
    request_s: float
    ready_s: float


@dataclass(frozen=True)
class BenchSpec:
    """What to run. `arms` starts with `ar`, the baseline, and holds `chain`; no arm twice.

    `top_p`, `top_k` and `min_p` filter what is sampled at the temperatures above 0.

    `model` and `drafter` are what `ddtree serve` takes; `drafter` None is the model's own.

    At concurrency 1 a block is one prompt, above it `concurrency * waves` prompts. Each cell has
    as many blocks as hold `prompts` prompts, and at least `blocks`. `warmup_context` None warms
    each arm at the cell's own context. `control_outputs` is how many baseline outputs per context
    and temperature the grading's control scores. `ignore_eos` True is a kernel test: lengths are
    equal and outputs may loop.
    """

    title: str
    model: str
    drafter: str | None
    dtype: Dtype
    arms: tuple[Arm, ...]
    contexts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    temperatures: tuple[float, ...]
    top_p: float
    top_k: int
    min_p: float
    prompts: int
    blocks: int
    waves: int
    max_tokens: int
    workload: Workload
    warmup_context: int | None
    warmup_tokens: int
    calibration_tokens: int
    deadlines: DeadlineSpec
    control: bool
    control_outputs: int
    ignore_eos: bool
    seed: int

    def block_prompts(self, concurrency: int) -> int:
        """Prompts in one block."""
        return 1 if concurrency == 1 else concurrency * self.waves

    def block_count(self, concurrency: int) -> int:
        """Blocks of one cell."""
        size = self.block_prompts(concurrency)
        return max(self.blocks, -(-self.prompts // size))

    def sampling(self, temperature: float) -> Sampling:
        """How requests at one of the temperatures sample, each with a seed of its own besides."""
        if temperature == 0:
            return Sampling()
        return Sampling(temperature, self.top_p, self.top_k, self.min_p)

    def to_dict(self) -> dict[str, Any]:
        """Every setting as resolved, in the file's own form: loading it gives this spec back."""
        fields = dataclasses.asdict(self)
        fields["arms"] = [arm.to_request() for arm in self.arms]
        for name in _LISTS:
            fields[name] = list(fields[name])
        return fields

    def to_yaml(self) -> str:
        """`to_dict` as YAML, keys in the order of the fields."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @property
    def hash(self) -> str:
        """sha256 of the resolved specification."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)


class _ArmFile(_Strict):
    method: Literal["ar", "chain", "ddtree"]
    budget: _Count | None = None
    topk: _Count | None = None
    draft_window: _Window = None


class _AxesFile(_Strict):
    budget: list[_Count] = Field(min_length=1)
    topk: list[_Count] = Field(min_length=1)
    draft_window: list[_Window] = Field(default=[None], min_length=1)


class _DeadlinesFile(_Strict):
    first_token_s: _Seconds = 180.0
    silence_s: _Seconds = 60.0
    request_s: _Seconds = 600.0
    ready_s: _Seconds = 300.0


class _SpecFile(_Strict):
    title: str = "ddtree benchmark"
    model: str
    drafter: str | None = None
    dtype: Dtype = "bfloat16"
    arms: list[_ArmFile] = Field(default_factory=list)
    axes: _AxesFile | None = None
    contexts: list[_Count] = Field(min_length=1)
    concurrencies: list[_Count] = Field(min_length=1)
    temperatures: list[_Temperature] = Field(default=[0.0], min_length=1)
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    prompts: _Count = 8
    blocks: _Count = 3
    waves: _Count = 2
    max_tokens: Annotated[int, Field(ge=2)] = 64
    workload: Workload = "code"
    warmup_context: _Count | None = None
    warmup_tokens: _Count = 8
    calibration_tokens: Annotated[int, Field(ge=4)] = 16
    deadlines: _DeadlinesFile = Field(default_factory=_DeadlinesFile)
    control: bool = True
    control_outputs: _Count = 4
    ignore_eos: bool = False
    seed: int = 0


def load_spec(path: Path) -> BenchSpec:
    """Read a specification; ConfigError names the key that can't be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror or error})") from None
    return parse_spec(text, str(path))


def preset(name: str) -> BenchSpec:
    """A specification shipped with the package; ConfigError lists the names there are."""
    if name not in preset_names():
        raise ConfigError(f"preset {name!r}: unknown; there are {', '.join(preset_names())}")
    text = (resources.files("ddtree.bench") / "presets" / f"{name}.yaml").read_text("utf-8")
    return parse_spec(text, f"preset {name}")


def preset_names() -> tuple[str, ...]:
    """Names of the shipped specifications, sorted."""
    folder = resources.files("ddtree.bench") / "presets"
    files = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def parse_spec(text: str, source: str) -> BenchSpec:
    """A specification from YAML text; `source` names it in messages."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML ({error})") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected keys and values, got {type(data).__name__}")
    try:
        file = _SpecFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error)}") from None
    return _resolve(file, source)


def differences(old: BenchSpec, new: BenchSpec) -> tuple[str, ...]:
    """`key: old value, now new value` for each setting that differs."""
    before, after = old.to_dict(), new.to_dict()
    return tuple(
        f"{key}: {before[key]!r}, now {after[key]!r}" for key in after if before[key] != after[key]
    )


def _resolve(file: _SpecFile, source: str) -> BenchSpec:
    lists = {name: tuple(getattr(file, name)) for name in _LISTS}
    for name, values in lists.items():
        if len(set(values)) != len(values):
            raise ConfigError(f"{source}: {name}: {list(values)} holds a value twice")
    plain = file.model_dump(exclude={"arms", "axes", "deadlines"})
    try:
        arms = _arms(file)
    except ConfigError as error:
        raise ConfigError(f"{source}: arms: {error}") from None
    try:
        _check_filters(file)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return BenchSpec(
        **{
            **plain,
            **lists,
            "arms": arms,
            "deadlines": DeadlineSpec(**file.deadlines.model_dump()),
        }
    )


def _arms(file: _SpecFile) -> tuple[Arm, ...]:
    listed = [Arm(**arm.model_dump()) for arm in file.arms]
    axes: Iterable[Arm] = ()
    if file.axes is not None:
        grid = product(file.axes.budget, file.axes.topk, file.axes.draft_window)
        axes = (Arm("ddtree", budget, topk, window) for budget, topk, window in grid)
    # A dict keeps the order and drops what is named twice.
    return tuple(dict.fromkeys([Arm("ar"), Arm("chain"), *listed, *axes]))


def _check_filters(file: _SpecFile) -> None:
    """ConfigError for a value out of range, and for a filter that nothing would use."""
    filters = Sampling(top_p=file.top_p, top_k=file.top_k, min_p=file.min_p)
    asked = [name for name in filters.to_request() if name != "temperature"]
    if asked and not any(file.temperatures):
        raise ConfigError(
            f"{asked[0]}: has no effect while all temperatures are 0; leave it out, or name a "
            "temperature above 0 in temperatures"
        )


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key; known are {_known(first['loc'])}"
    if first["type"] == "missing":
        return f"{where}: missing"
    return f"{where}: {first['msg']}, got {first['input']!r}"


def _known(location: tuple[int | str, ...]) -> str:
    models: dict[str, type[BaseModel]] = {
        "arms": _ArmFile,
        "axes": _AxesFile,
        "deadlines": _DeadlinesFile,
    }
    model = models[str(location[0])] if len(location) > 1 else _SpecFile
    return ", ".join(model.model_fields)
