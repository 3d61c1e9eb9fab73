"""`ddtree models`: what can be used by name, and fetching it ahead of time."""

import dataclasses
import json
from typing import Annotated

import typer

from ddtree.cli.paths import cache_dir

app = typer.Typer(no_args_is_help=True, help="Models that can be used by name.")


@dataclasses.dataclass(frozen=True)
class _Row:
    name: str
    present: bool
    path: str | None
    drafter: str
    license: str
    download_bytes: int
    description: str


@app.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the models known by name and whether they are on this machine."""
    rows = _rows()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    for row in rows:
        state = "present" if row.present else f"absent ({row.download_bytes / 1e6:.0f} MB to fetch)"
        typer.echo(f"{row.name}  {state}  {row.license}  drafter {row.drafter}")
        typer.echo(f"  {row.description}")
        typer.echo(f"  {row.path or f'get it with: ddtree models pull {row.name}'}")


@app.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="A name from `ddtree models list`, or ORG/NAME.")],
) -> None:
    """Fetch a model now, so that every later use is offline; prints its folder.

    A name goes into ddtree's own cache folder, ORG/NAME into the hub's.
    """
    from ddtree.models import zoo

    tools = zoo.FetchTools(notify=lambda message: typer.echo(message, err=True))
    typer.echo(zoo.pull(name, cache_dir(), tools))


def _rows() -> list[_Row]:
    from ddtree.models import zoo

    rows = []
    for entry in zoo.ZOO.values():
        folder = zoo.find_target(entry, cache_dir())
        rows.append(
            _Row(
                name=entry.name,
                present=folder is not None,
                path=None if folder is None else str(folder),
                drafter=entry.drafter,
                license=entry.license,
                download_bytes=entry.download_bytes,
                description=entry.description,
            )
        )
    return rows
