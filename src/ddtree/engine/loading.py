"""From files to a running engine."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase as Tokenizer

from ddtree.engine.engine import Engine, RoundObserver
from ddtree.engine.params import EngineConfig
from ddtree.errors import ConfigError
from ddtree.models.drafter import load_drafter
from ddtree.models.drafter_window import DrafterOverrides
from ddtree.models.loading import load_target
from ddtree.models.target import Target
from ddtree.models.zoo import ModelPaths

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class LoadedEngine:
    """An engine and the tokenizer of its target."""

    engine: Engine
    tokenizer: Tokenizer
    paths: ModelPaths


def load_engine(
    paths: ModelPaths,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    config: EngineConfig | None = None,
    observer: RoundObserver | None = None,
    overrides: DrafterOverrides | None = None,
) -> LoadedEngine:
    """Load target and drafter (if `paths` has one) and check that they belong together.

    `overrides` take the place of what the drafter's checkpoint says of its window; ConfigError
    where there is no drafter for them.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    if paths.drafter is None and overrides not in (None, DrafterOverrides()):
        raise ConfigError(
            "window_kind and draft_causal: there is no drafter to override; name one or leave "
            "them out"
        )
    loaded = load_target(paths, DTYPES[dtype], device)
    if paths.drafter is None:
        return LoadedEngine(
            Engine(Target(loaded.model), None, config, observer, loaded.tokenizer),
            loaded.tokenizer,
            paths,
        )
    drafter = load_drafter(paths.drafter, DTYPES[dtype], device, overrides)
    target = Target(loaded.model, drafter.config.target_layer_ids)
    engine = Engine(target, drafter, config, observer, loaded.tokenizer)
    return LoadedEngine(engine, loaded.tokenizer, paths)
