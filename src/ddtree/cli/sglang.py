"""`ddtree sglang`: launch lines of SGLang with DDTREE, and drafters as SGLang reads them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ddtree.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="DDTREE on a stock SGLang.")


@app.command("launch", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def launch(
    context: typer.Context,
    recipe: Annotated[str, typer.Option(help="kimi-k2.6, qwen3-8b or smollm2-135m.")],
    model: Annotated[str | None, typer.Option(help="Target: hub id or folder.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Drafter: hub id or folder.")] = None,
    budget: Annotated[int | None, typer.Option(help="Draft nodes a round.")] = None,
    topk: Annotated[int | None, typer.Option(help="Candidates a depth.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens the drafter sees.")] = None,
    tp: Annotated[int | None, typer.Option(help="GPUs that share the target.")] = None,
    port: Annotated[int | None, typer.Option(help="Where the server listens.")] = None,
    run: Annotated[bool, typer.Option("--run", help="Start it instead of printing it.")] = False,
) -> None:
    """Print, or with --run become, the command that serves a target with DDTREE.

    Flags after `--` go to SGLang as they are, and win.
    """
    from ddtree.sglang_plugin import recipes

    wanted = recipes.changed(
        recipes.recipe_of(recipe),
        model=model,
        drafter=drafter,
        budget=budget,
        topk=topk,
        window=window,
        tp=tp,
        port=port,
    )
    extra = tuple(context.args)
    typer.echo(recipes.shell_line(wanted, extra))
    if run:
        words = recipes.command_of(wanted, extra)
        try:
            os.execvpe(words[0], words, {**os.environ, **recipes.environment_of(wanted)})
        except OSError as error:
            raise ConfigError(f"{words[0]}: can't be started: {error}") from None


@app.command("drafter")
def drafter(
    name: Annotated[str, typer.Argument(help="A name from `ddtree models list`, or a folder.")],
    out: Annotated[Path, typer.Argument(help="The folder to write, which must not be there.")],
) -> None:
    """Write a drafter's folder as SGLang reads it; prints it."""
    from ddtree.models import zoo
    from ddtree.sglang_plugin.drafters import write_drafter

    folder = zoo.shipped_drafter(zoo.ZOO[name]) if name in zoo.ZOO else Path(name)
    typer.echo(write_drafter(folder, out))
