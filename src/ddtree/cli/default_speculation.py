"""`ddtree serve`'s options for requests that ask for no speculation of their own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddtree.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from ddtree.serve import DefaultSpeculation

_PANEL = "Requests that name no speculation"

MethodOption = Annotated[
    str | None,
    typer.Option(
        metavar="ar|chain|ddtree",
        help="How they are decoded. Default: ddtree where there is a drafter.",
        rich_help_panel=_PANEL,
    ),
]
BudgetOption = Annotated[
    int | None, typer.Option(min=1, help="Draft nodes of ddtree.", rich_help_panel=_PANEL)
]
TopkOption = Annotated[
    int | None,
    typer.Option(min=1, help="Candidates per depth of ddtree.", rich_help_panel=_PANEL),
]
ScheduleOption = Annotated[
    Path | None,
    typer.Option(
        help="JSON of `ddtree bench recommend --schedule`: chosen per request by prompt length, "
        "requests running and temperature.",
        rich_help_panel=_PANEL,
    ),
]


def default_speculation(
    method: str | None, budget: int | None, topk: int | None, schedule: Path | None
) -> "DefaultSpeculation":
    """What the options ask for; ConfigError where they contradict each other."""
    from ddtree.engine import Speculation
    from ddtree.records.schedule import parse_schedule
    from ddtree.serve import DefaultSpeculation

    named = [
        name
        for name, value in (("--method", method), ("--budget", budget), ("--topk", topk))
        if value is not None
    ]
    if schedule is not None:
        if named:
            raise ConfigError(f"{named[0]}: --schedule chooses this by request; give one of them")
        try:
            text = schedule.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{schedule}: can't be read ({error})") from None
        return DefaultSpeculation(parse_schedule(text, str(schedule)))
    if not named:
        return DefaultSpeculation()
    try:
        return DefaultSpeculation(None, Speculation(method or "ddtree", budget, topk))  # type: ignore[arg-type]  # it checks
    except RequestError as error:
        raise ConfigError(f"--{str(error).removeprefix('speculation.')}") from None
