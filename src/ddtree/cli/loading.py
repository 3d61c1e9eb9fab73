"""From a model's name to its files, telling people what takes time."""

import typer

from ddtree.cli.paths import cache_dir
from ddtree.engine import Engine
from ddtree.models import zoo
from ddtree.models.drafter_window import DrafterOverrides
from ddtree.models.zoo import ModelPaths


def resolve_model(model: str, drafter: str | None) -> ModelPaths:
    """Local folders of a model; a zoo entry is fetched on its first use."""
    tools = zoo.FetchTools(notify=lambda message: typer.echo(message, err=True))
    return zoo.resolve(model, cache_dir(), drafter, tools)


def drafter_overrides(window_kind: str | None, causal: bool | None) -> DrafterOverrides:
    """`--window-kind` and `--draft-causal`; ConfigError on an unknown kind."""
    return DrafterOverrides(window_kind, causal)  # type: ignore[arg-type]  # it checks


def window_meaning(engine: Engine) -> dict[str, str | bool | None]:
    """Which context a drafter's block sees, and what decided it; None without a drafter."""
    config = None if engine.drafting is None else engine.drafting.drafter.config
    return {
        "window_kind": None if config is None else config.window_kind,
        "window_kind_origin": None if config is None else config.window_kind_origin,
        "draft_causal": None if config is None else config.causal,
        "draft_causal_origin": None if config is None else config.causal_origin,
    }
