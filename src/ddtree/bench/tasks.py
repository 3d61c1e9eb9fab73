"""What prompts ask for, by workload: shipped tasks, HumanEval's, or a user's own prompts."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from ddtree.bench.spec import BenchSpec, ChatFormat
from ddtree.bench.spec_file import FILE_PREFIX
from ddtree.errors import ConfigError

Filler = Literal["code", "document"]
LoadHumanEval = Callable[[], Sequence[str]]

_SHIPPED = ("code", "document", "chat")
_SEPARATOR: dict[Filler, str] = {"code": "\n\n\n", "document": "\n\n"}
_LINE_KEYS = ("prompt", "token_ids", "id")


@dataclass(frozen=True)
class Task:
    """The end of a prompt, as text or as token ids; `id` is the user's name for it, if any."""

    content: str | tuple[int, ...]
    id: str | None = None


@dataclass(frozen=True)
class Kind:
    """One kind of prompt: `before`, filler, separator, a task, `after`.

    `once` tasks are used up, each for one prompt; others come again behind other filler.
    """

    name: str
    tasks: tuple[Task, ...]
    filler: Filler
    before: str = ""
    after: str = ""
    once: bool = False

    @property
    def separator(self) -> str:
        """Between filler and task."""
        return _SEPARATOR[self.filler]

    def in_order(self, seed: int) -> Iterator[Task]:
        """Tasks as they are to be used."""
        if self.once:
            yield from self.tasks
            return
        shuffler = random.Random(seed)
        while True:
            yield from shuffler.sample(self.tasks, len(self.tasks))


def kinds_of(
    spec: BenchSpec, load_humaneval: LoadHumanEval, chat: ChatFormat | None
) -> tuple[Kind, ...]:
    """The kinds of a spec's workload, taken in turn.

    `chat` is the server's own format, for a spec that gives none. ConfigError on a workload that
    can't be had.
    """
    form = spec.chat or chat
    if spec.workload == "mixed":
        return (_shipped("code"), _shipped("document"))
    if spec.workload == "humaneval":
        return (Kind("humaneval", tuple(map(Task, load_humaneval())), "code"),)
    if spec.workload == "chat":
        if form is None:
            raise ConfigError(
                "workload chat: the server does not say what stands around a user's turn; give "
                "chat: {before: ..., after: ...}"
            )
        return (Kind("chat", shipped_tasks("chat"), "document", form.before, form.after),)
    if spec.workload.startswith(FILE_PREFIX):
        tasks = read_tasks(Path(spec.workload.removeprefix(FILE_PREFIX)))
        around = spec.chat or ChatFormat("", "")
        once = not spec.reuse_prompts
        return (Kind("file", tasks, "document", around.before, around.after, once),)
    return (_shipped(spec.workload),)


def shipped_tasks(name: str) -> tuple[Task, ...]:
    """The tasks shipped for code, document or chat, in the file's order."""
    text = (resources.files("ddtree.bench") / "data" / "tasks.yaml").read_text("utf-8")
    return tuple(Task(task) for task in yaml.safe_load(text)[name])


def read_tasks(path: Path) -> tuple[Task, ...]:
    """A user's prompts: JSON lines with `prompt` (text) or `token_ids`, and perhaps `id`.

    ConfigError names the file, the line and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"workload {path}: can't be read ({error})") from None
    tasks = [_task(line, f"workload {path}, line {n}") for n, line in enumerate(lines, 1) if line]
    if not tasks:
        raise ConfigError(f"workload {path}: holds no prompt; expected JSON lines with `prompt`")
    return tuple(tasks)


def _shipped(name: str) -> Kind:
    filler: Filler = "code" if name == "code" else "document"
    return Kind(name, shipped_tasks(name), filler)


def _task(line: str, where: str) -> Task:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected an object, got {type(data).__name__}")
    unknown = sorted(set(data) - set(_LINE_KEYS))
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(_LINE_KEYS)}")
    name = data.get("id")
    return Task(_content(data, where), None if name is None else str(name))


def _content(data: dict[str, Any], where: str) -> str | tuple[int, ...]:
    text, ids = data.get("prompt"), data.get("token_ids")
    if (text is None) == (ids is None):
        raise ConfigError(f"{where}: give `prompt` or `token_ids`, one of them")
    if ids is None:
        if not isinstance(text, str) or not text:
            raise ConfigError(f"{where}: prompt: expected a text that isn't empty, got {text!r}")
        return text
    # bool is a kind of int, but no token id.
    if not isinstance(ids, list) or not ids or any(type(i) is not int or i < 0 for i in ids):
        raise ConfigError(f"{where}: token_ids: expected a list of integers of at least 0")
    return tuple(ids)
