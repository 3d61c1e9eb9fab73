"""Write the pages of docs/ that are made: cli.md from the commands themselves, sglang-measured.md
from the committed results; `--check` only compares."""

import sys
from pathlib import Path

import typer

from ddtree.cli import app

sys.path.insert(0, str(Path(__file__).parent))

import sglang_page

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[Path, str]:
    """Each page and its text."""
    return {
        DOCS / "cli.md": command_line(),
        DOCS / "sglang-measured.md": sglang_page.render(),
    }


def command_line() -> str:
    """Every command with its arguments, options and defaults."""
    lines = ["# Command line", "", "Written by `python scripts/make_docs.py`; do not edit."]
    for name, command in _commands("ddtree", typer.main.get_command(app)):
        lines += ["", f"## `{name}`", "", (command.help or "").strip(), ""]
        lines += ["| option | default | meaning |", "| --- | --- | --- |"]
        for parameter in command.params:
            if parameter.name not in ("help", "install_completion", "show_completion"):
                lines.append(_row(parameter))
    return "\n".join(lines) + "\n"


def _commands(name, command):
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child in sorted(children):
        yield from _commands(f"{name} {child}", children[child])


def _row(parameter) -> str:
    is_option = parameter.param_type_name == "option"
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    shown = names if is_option else (parameter.name or "").upper()
    default = parameter.default
    if callable(default) or default is None or str(default).startswith("Sentinel"):
        default = "required" if parameter.required else ""
    meaning = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| `{shown}` | {f'`{default}`' if default != '' else ''} | {meaning} |"


if __name__ == "__main__":
    for path, text in pages().items():
        if "--check" in sys.argv and path.read_text() != text:
            sys.exit(f"{path.name} is stale: run scripts/make_docs.py")
        path.write_text(text)
