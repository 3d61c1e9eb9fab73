"""Options that several commands share, and how they become configuration."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ddtree.errors import ConfigError

# Holds the key of a server, for the one who serves and the one who calls.
API_KEY_VARIABLE = "DDTREE_API_KEY"

ModelOption = Annotated[
    str, typer.Option(help="Zoo name, folder of safetensors, GGUF file, or pulled hub id.")
]
DrafterOption = Annotated[
    str | None,
    typer.Option(help="Folder of a DFlash checkpoint, or 'none'. Default: the model's own."),
]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float64.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, help="CPU threads. Default: torch's choice.")
]
EagerOption = Annotated[
    bool,
    typer.Option(
        "--eager",
        help="On a GPU: torch's own kernels, launched one by one, no CUDA graphs. "
        "On a CPU it is always so.",
    ),
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        metavar="W|full",
        help="Committed tokens the drafter sees. Default: what the checkpoint was trained with.",
    ),
]
WindowKindOption = Annotated[
    str | None,
    typer.Option(
        metavar="anchored|per-query",
        help="Where the draft window ends: at the last committed token for the whole block, or "
        "at each row. Default: the checkpoint's.",
    ),
]
DraftCausalOption = Annotated[
    bool | None,
    typer.Option(
        "--draft-causal/--no-draft-causal",
        help="Whether a row of the drafter's block sees earlier rows only. Default: the "
        "checkpoint's.",
    ),
]

DEFAULT_MODEL = "smollm2-135m"


def parse_window(text: str | None) -> int | Literal["full"] | None:
    """`--draft-window`'s value."""
    if text is None:
        return None
    if text == "full":
        return "full"
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--draft-window: got {text!r}, expected a number or 'full'") from None


def expand(path: str | None) -> str | None:
    """A leading ~ in a path that came in quotes."""
    return str(Path(path).expanduser()) if path and path.startswith("~") else path
