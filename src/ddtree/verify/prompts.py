"""Prompts of the procedure: code, chat and prose, short enough for minutes on a small machine."""

import json
from pathlib import Path

from ddtree.errors import ConfigError

PROMPTS = (
    'def is_prime(n: int) -> bool:\n    """Return True if n is a prime number."""\n',
    "The three most important things to know about the ocean are",
    "import csv\n\n\ndef read_rows(path):\n    # Read a CSV file and return its rows as dicts.\n",
    "Question: Why is the sky blue?\nAnswer:",
    'class Stack:\n    """A last-in, first-out container."""\n\n    def __init__(self):\n',
    "Once upon a time in a small village by the river there lived",
    "def merge_sort(values):\n    if len(values) <= 1:\n        return values\n",
    "To make a good cup of tea, first",
)


def read_prompts(path: Path) -> tuple[str, ...]:
    """A file of one JSON value per line: a text, or an object with `prompt`. ConfigError names the
    line that can't be used."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read as UTF-8 text ({error})") from None
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            raise ConfigError(f"{path}, line {number}: not JSON: {line[:60]!r}") from None
        text = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(text, str) or not text:
            raise ConfigError(
                f"{path}, line {number}: expected a text or an object with `prompt`, got "
                f"{line[:60]!r}"
            )
        prompts.append(text)
    if not prompts:
        raise ConfigError(f"{path}: holds no prompt")
    return tuple(prompts)
