"""The specification's YAML file, checked key by key and resolved to a `BenchSpec`."""

import dataclasses
from collections.abc import Iterable, Mapping
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddtree.bench.spec import (
    OWN_LENGTH,
    Arrivals,
    BenchSpec,
    ChatFormat,
    DeadlineSpec,
    Dtype,
    Exclusion,
    TuningSpec,
)
from ddtree.endpoint.config import parse_endpoint
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.records.settings import Setting

WORKLOADS = ("code", "humaneval", "chat", "document", "mixed")
FILE_PREFIX = "file:"

Environment = Mapping[str, str] | None

_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Window = _Count | Literal["full"] | None
# Settings that a cell has one value of each.
_LISTS = ("contexts", "concurrencies", "temperatures", "rates")
_CELL_KEYS = (
    *(field.name for field in dataclasses.fields(Arm)),
    *(field.name for field in dataclasses.fields(Setting)),
)


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
    part_s: _Seconds = 3600.0
    ready_s: _Seconds = 300.0


class _ChatFile(_Strict):
    before: str
    after: str


class _TuningFile(_Strict):
    candidates: _Count = 8
    prompts: _Count = 2
    growth: Annotated[int, Field(ge=2)] = 3
    finalists: _Count = 3
    predict: bool = True


class _SpecFile(_Strict):
    title: str = "ddtree benchmark"
    model: str
    drafter: str | None = None
    dtype: Dtype = "bfloat16"
    endpoint: dict[str, Any] = Field(default_factory=dict)
    arms: list[_ArmFile] = Field(default_factory=list)
    axes: _AxesFile | None = None
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    contexts: list[_Count | Literal["own"]] = Field(min_length=1)
    concurrencies: list[_Count] = Field(min_length=1)
    temperatures: list[_Temperature] = Field(default=[0.0], min_length=1)
    arrivals: Arrivals = "closed"
    rates: list[_Rate] = Field(default_factory=list)
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    prompts: _Count = 8
    blocks: _Count = 3
    waves: _Count = 2
    max_tokens: Annotated[int, Field(ge=2)] = 64
    workload: str = "code"
    chat: _ChatFile | None = None
    reuse_prompts: bool = False
    lead_in: bool = False
    warmup_context: _Count | None = None
    warmup_tokens: _Count = 8
    calibration_tokens: Annotated[int, Field(ge=4)] = 16
    deadlines: _DeadlinesFile = Field(default_factory=_DeadlinesFile)
    control: bool = True
    control_outputs: _Count = 4
    ignore_eos: bool = False
    budget_minutes: _Seconds | None = None
    tuning: _TuningFile = Field(default_factory=_TuningFile)
    sentinel_every: Annotated[int, Field(ge=0)] = 0
    kv_tokens: _Count | None = None
    seed: int = 0


def load_spec(path: Path, environment: Environment = None) -> BenchSpec:
    """Read a specification; ConfigError names the key that can't be used.

    `environment` has the variable that holds an endpoint's API key; None leaves the key out.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror or error})") from None
    return parse_spec(text, str(path), environment)


def preset(name: str, environment: Environment = None) -> BenchSpec:
    """A specification shipped with the package; ConfigError lists the names there are."""
    if name not in preset_names():
        raise ConfigError(f"preset {name!r}: unknown; there are {', '.join(preset_names())}")
    text = (resources.files("ddtree.bench") / "presets" / f"{name}.yaml").read_text("utf-8")
    return parse_spec(text, f"preset {name}", environment)


def preset_names() -> tuple[str, ...]:
    """Names of the shipped specifications, sorted."""
    folder = resources.files("ddtree.bench") / "presets"
    files = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def parse_spec(text: str, source: str, environment: Environment = None) -> BenchSpec:
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
    try:
        return _resolve(file, environment)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _resolve(file: _SpecFile, environment: Environment) -> BenchSpec:
    contexts = [OWN_LENGTH if c == "own" else c for c in file.contexts]
    lists = {name: tuple(getattr(file, name)) for name in _LISTS} | {"contexts": tuple(contexts)}
    for name, values in lists.items():
        if len(set(values)) != len(values):
            raise ConfigError(f"{name}: {list(values)} holds a value twice")
    for check in (_check_filters, _check_arrivals, _check_workload):
        check(file)
    nested = {"arms", "axes", "endpoint", "exclude", "deadlines", "chat", "tuning"}
    spec = BenchSpec(
        **{
            **file.model_dump(exclude=nested),
            **lists,
            "arms": _arms(file),
            "endpoint": parse_endpoint(file.endpoint, environment),
            "exclude": tuple(_exclusion(entry, n) for n, entry in enumerate(file.exclude)),
            "deadlines": DeadlineSpec(**file.deadlines.model_dump()),
            "chat": None if file.chat is None else ChatFormat(**file.chat.model_dump()),
            "tuning": TuningSpec(**file.tuning.model_dump()),
        }
    )
    if any(spec.excluded(Arm("ar"), setting) for setting in spec.settings):
        raise ConfigError("exclude: leaves out ar, the baseline; name a method or a budget as well")
    return spec


def _arms(file: _SpecFile) -> tuple[Arm, ...]:
    try:
        listed = [Arm(**arm.model_dump()) for arm in file.arms]
    except ConfigError as error:
        raise ConfigError(f"arms: {error}") from None
    axes: Iterable[Arm] = ()
    if file.axes is not None:
        grid = product(file.axes.budget, file.axes.topk, file.axes.draft_window)
        axes = (Arm("ddtree", budget, topk, window) for budget, topk, window in grid)
    # A dict keeps the order and drops what is named twice.
    return tuple(dict.fromkeys([Arm("ar"), Arm("chain"), *listed, *axes]))


def _exclusion(entry: dict[str, Any], number: int) -> Exclusion:
    if not entry:
        raise ConfigError(f"exclude.{number}: empty; it would leave out every cell")
    for key in entry:
        if key not in _CELL_KEYS:
            raise ConfigError(
                f"exclude.{number}.{key}: unknown key; known are {', '.join(_CELL_KEYS)}"
            )
    return Exclusion(
        tuple(
            (key, tuple(value) if isinstance(value, list) else (value,))
            for key, value in entry.items()
        )
    )


def _check_filters(file: _SpecFile) -> None:
    """ConfigError for a value out of range, and for a filter that nothing would use."""
    filters = Sampling(top_p=file.top_p, top_k=file.top_k, min_p=file.min_p)
    asked = [name for name in filters.to_request() if name != "temperature"]
    if asked and not any(file.temperatures):
        raise ConfigError(
            f"{asked[0]}: has no effect while all temperatures are 0; leave it out, or name a "
            "temperature above 0 in temperatures"
        )


def _check_arrivals(file: _SpecFile) -> None:
    if file.arrivals == "closed" and file.rates:
        raise ConfigError(
            "rates: a closed loop has none; leave them out, or set arrivals to poisson or constant"
        )
    if file.arrivals != "closed" and not file.rates:
        raise ConfigError(f"rates: missing; arrivals {file.arrivals} needs requests per second")


def _check_workload(file: _SpecFile) -> None:
    is_file = file.workload.startswith(FILE_PREFIX)
    if not is_file and file.workload not in WORKLOADS:
        raise ConfigError(
            f"workload: got {file.workload!r}, expected one of {', '.join(WORKLOADS)} or "
            f"{FILE_PREFIX}PATH"
        )
    if "own" in file.contexts and not is_file:
        raise ConfigError(
            f"contexts: own needs a file of prompts, the workload is {file.workload}; name a "
            f"number of tokens, or set workload to {FILE_PREFIX}PATH"
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
        "chat": _ChatFile,
        "tuning": _TuningFile,
    }
    model = models[str(location[0])] if len(location) > 1 else _SpecFile
    return ", ".join(model.model_fields)
