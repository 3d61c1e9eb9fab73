"""Prompts of an exact length in tokens: a real task at the end of natural filler.

Code filler is the running interpreter's standard library, prose filler an essay shipped here and
then the language reference inside that library: text a model has a realistic time with, unlike
random or repeated tokens, which flatter a drafter. No two prompts share filler.
"""

import hashlib
import random
import sysconfig
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, resources
from itertools import count
from pathlib import Path
from typing import Literal

import yaml

from ddtree.bench.spec import Workload
from ddtree.errors import ConfigError

Tokenize = Callable[[str], Awaitable[tuple[int, ...]]]
Kind = Literal["code", "text"]

# Modules of one plain file each in every supported Python.
_MODULES = (
    *("argparse", "ast", "bisect", "calendar", "cmd", "codecs", "configparser", "contextlib"),
    *("copy", "csv", "dataclasses", "difflib", "doctest", "enum", "fractions", "ftplib"),
    *("functools", "gettext", "heapq", "imaplib", "inspect", "ipaddress", "linecache", "mailbox"),
    *("mimetypes", "numbers", "optparse", "pickle", "pickletools", "platform", "plistlib"),
    *("poplib", "pprint", "queue", "random", "sched", "selectors", "shelve", "shlex", "shutil"),
    *("smtplib", "socketserver", "statistics", "string", "subprocess", "tarfile", "textwrap"),
    *("threading", "timeit", "trace", "turtle", "typing", "uuid", "weakref"),
)
_SEPARATOR: dict[Kind, str] = {"code": "\n\n\n", "text": "\n\n"}
# Characters handed to the tokenizer at once.
_PIECE_CHARS = 40_000


@dataclass(frozen=True)
class Prompt:
    """`token_ids` has exactly the length asked for; `sha256` is over the ids."""

    id: str
    token_ids: tuple[int, ...]
    sha256: str


def prompts_sha256(prompts: tuple[Prompt, ...]) -> str:
    """One hash over prompts in their order."""
    return hashlib.sha256("".join(prompt.sha256 for prompt in prompts).encode()).hexdigest()


class PromptSource:
    """Hands out prompts, none twice. The same seed and calls give the same prompts."""

    def __init__(self, tokenize: Tokenize, workload: Workload, seed: int) -> None:
        kinds: tuple[Kind, ...] = ("code", "text") if workload == "mixed" else (workload,)
        self._tokenize = tokenize
        self._kinds = kinds
        self._filler = {kind: _Filler(tokenize, _texts(kind, seed)) for kind in kinds}
        self._tasks = {kind: _endless(load_tasks(kind), seed) for kind in kinds}
        self._numbers = count()
        self._given: set[str] = set()

    async def take(self, context: int, number: int) -> tuple[Prompt, ...]:
        """The next `number` prompts, each of `context` tokens.

        ConfigError when a task does not fit into the context or the filler is used up.
        """
        return tuple([await self._one(context) for _ in range(number)])

    async def _one(self, context: int) -> Prompt:
        index = next(self._numbers)
        kind = self._kinds[index % len(self._kinds)]
        task = await self._tokenize(_SEPARATOR[kind] + next(self._tasks[kind]))
        room = context - len(task)
        if room < 1:
            raise ConfigError(
                f"contexts: {context} tokens leave no room before a task of {len(task)}; "
                "use a longer context"
            )
        ids = await self._filler[kind].take(room) + task
        digest = hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()
        if digest in self._given:
            raise ConfigError(
                f"contexts: prompts of {context} tokens repeat; use a longer context or fewer"
            )
        self._given.add(digest)
        return Prompt(f"{kind}-{index:04d}-{context}", ids, digest)


def load_tasks(kind: Kind) -> tuple[str, ...]:
    """The tasks shipped for one kind, in the file's order."""
    text = (resources.files("ddtree.bench") / "data" / "tasks.yaml").read_text("utf-8")
    return tuple(yaml.safe_load(text)[kind])


class _Filler:
    """A stream of tokens cut into slices that never overlap."""

    def __init__(self, tokenize: Tokenize, texts: Iterator[str]) -> None:
        self._tokenize = tokenize
        self._texts = texts
        self._ready: list[int] = []

    async def take(self, length: int) -> tuple[int, ...]:
        while len(self._ready) < length:
            text = next(self._texts, None)
            if text is None:
                raise ConfigError(
                    "workload: the filler is used up; ask for fewer prompts or shorter contexts"
                )
            self._ready.extend(await self._tokenize(text))
        taken, self._ready = self._ready[:length], self._ready[length:]
        return tuple(taken)


def _texts(kind: Kind, seed: int) -> Iterator[str]:
    whole = _code_texts(seed) if kind == "code" else _prose_texts()
    for text in whole:
        for start in range(0, len(text), _PIECE_CHARS):
            yield text[start : start + _PIECE_CHARS]


def _code_texts(seed: int) -> Iterator[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    names = list(_MODULES)
    random.Random(seed).shuffle(names)
    for name in names:
        try:
            yield (folder / f"{name}.py").read_text(encoding="utf-8")
        except OSError:
            raise ConfigError(
                f"workload code: {folder / name}.py can't be read; it needs a Python with the "
                "source of its standard library"
            ) from None


def _prose_texts() -> Iterator[str]:
    yield (resources.files("ddtree.bench") / "data" / "prose.txt").read_text("utf-8")
    try:
        topics = import_module("pydoc_data.topics").topics
    except ImportError:
        raise ConfigError(
            "workload text: this Python lacks pydoc_data, whose prose fills long prompts"
        ) from None
    yield from (topics[name] for name in sorted(topics))


def _endless(tasks: tuple[str, ...], seed: int) -> Iterator[str]:
    shuffler = random.Random(seed)
    while True:
        yield from shuffler.sample(tasks, len(tasks))
