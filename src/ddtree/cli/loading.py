"""From a model's name to its files, telling people what takes time."""

import typer

from ddtree.cli.paths import cache_dir
from ddtree.models import zoo
from ddtree.models.zoo import ModelPaths


def resolve_model(model: str, drafter: str | None) -> ModelPaths:
    """Local folders of a model; a zoo entry is fetched on its first use."""
    tools = zoo.FetchTools(notify=lambda message: typer.echo(message, err=True))
    return zoo.resolve(model, cache_dir(), drafter, tools)
