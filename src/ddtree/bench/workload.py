"""Prompts of an exact length in tokens: a real task at the end of natural filler.

Code filler is the running interpreter's standard library, prose filler an essay shipped here and
then the language reference inside that library: text a model has a realistic time with, unlike
random or repeated tokens, which flatter a drafter. No two prompts begin alike: each one's filler
starts at a place of its own, and where all of it has been used it comes again from other places.
"""

import hashlib
import random
import sysconfig
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module, resources
from itertools import count
from pathlib import Path

from ddtree.bench.spec import OWN_LENGTH
from ddtree.bench.tasks import Filler, Kind, Task
from ddtree.errors import ConfigError

Tokenize = Callable[[str], Awaitable[tuple[int, ...]]]

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
# Characters handed to the tokenizer at once.
_PIECE_CHARS = 40_000
# Tasks tried for one that fits into a context, before the context is called too short.
_TASK_TRIES = 200


@dataclass(frozen=True)
class Prompt:
    """`token_ids` has exactly the length asked for; `sha256` is over the ids."""

    id: str
    token_ids: tuple[int, ...]
    sha256: str


def prompts_sha256(prompts: Sequence[Prompt]) -> str:
    """One hash over prompts in their order."""
    return hashlib.sha256("".join(prompt.sha256 for prompt in prompts).encode()).hexdigest()


class PromptSource:
    """Hands out prompts, none twice. The same seed and calls give the same prompts."""

    def __init__(self, tokenize: Tokenize, kinds: Sequence[Kind], seed: int) -> None:
        self._tokenize = tokenize
        self._kinds = tuple(kinds)
        self._filler = {kind.filler: _Filler(tokenize, kind.filler, seed) for kind in kinds}
        self._tasks = {kind.name: kind.in_order(seed) for kind in kinds}
        self._numbers = count()
        self._given: set[str] = set()

    async def take(self, context: int, number: int) -> tuple[Prompt, ...]:
        """The next `number` prompts, each of `context` tokens, or as long as its task if that is
        OWN_LENGTH.

        ConfigError when no task fits into the context, or when a file's prompts are used up.
        """
        return tuple([await self._one(context) for _ in range(number)])

    async def _one(self, context: int) -> Prompt:
        index = next(self._numbers)
        kind = self._kinds[index % len(self._kinds)]
        task, name = await self._task(kind, context)
        before = await self._tokenize(kind.before) if kind.before else ()
        room = 0 if context == OWN_LENGTH else context - len(before) - len(task)
        ids = before + await self._filler[kind.filler].take(room) + task
        digest = hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()
        if digest in self._given and not (kind.name == "file" and not kind.once):
            raise ConfigError(
                f"contexts: prompts of {context} tokens repeat; use a longer context or fewer"
            )
        self._given.add(digest)
        length = "own" if context == OWN_LENGTH else str(context)
        return Prompt(f"{name or kind.name}-{index:04d}-{length}", ids, digest)

    async def _task(self, kind: Kind, context: int) -> tuple[tuple[int, ...], str | None]:
        """The next task that fits, with what stands before and after it, and its name."""
        shortest = 0
        for _ in range(_TASK_TRIES):
            task = next(self._tasks[kind.name], None)
            if task is None:
                raise ConfigError(
                    "workload: the file's prompts are used up; add more, ask for fewer, or set "
                    "reuse_prompts: true"
                )
            ids = await self._ids(kind, task, alone=context == OWN_LENGTH)
            outside = len(await self._tokenize(kind.before)) if kind.before else 0
            if context == OWN_LENGTH or len(ids) + outside < context:
                return ids, task.id
            shortest = min(shortest or len(ids) + outside, len(ids) + outside)
        raise ConfigError(
            f"contexts: {context} tokens leave no room before a task of {shortest}; "
            "use a longer context"
        )

    async def _ids(self, kind: Kind, task: Task, *, alone: bool) -> tuple[int, ...]:
        if not isinstance(task.content, str):
            return task.content + (await self._tokenize(kind.after) if kind.after else ())
        separator = "" if alone else kind.separator
        return await self._tokenize(separator + task.content + kind.after)


class _Filler:
    """A stream of tokens cut into slices; where it ends it begins anew.

    No slice starts where another one has: a prefix cache finds nothing in common.
    """

    def __init__(self, tokenize: Tokenize, kind: Filler, seed: int) -> None:
        self._tokenize = tokenize
        self._open: Callable[[], Iterator[str]] = partial(_texts, kind, seed)
        self._texts = self._open()
        self._ready: list[int] = []
        self._turns = self._place = 0
        self._starts: set[int] = set()

    async def take(self, length: int) -> tuple[int, ...]:
        if not length:
            return ()
        turns = self._turns
        await self._fill(length)
        while self._place in self._starts:
            del self._ready[0]
            self._place += 1
            await self._fill(length)
            if self._turns > turns + 1:
                raise ConfigError(
                    "workload: the filler is used up; ask for fewer prompts or shorter contexts"
                )
        self._starts.add(self._place)
        taken, self._ready = self._ready[:length], self._ready[length:]
        self._place += length
        return tuple(taken)

    async def _fill(self, length: int) -> None:
        turns = self._turns
        while len(self._ready) < length:
            text = next(self._texts, None)
            if text is not None:
                self._ready.extend(await self._tokenize(text))
            elif self._turns > turns:
                raise ConfigError(
                    f"workload: all filler together is shorter than {length} tokens; use a "
                    "shorter context"
                )
            else:
                # What is left before the end is shorter than the prompt that asks.
                self._texts, self._ready, self._place = self._open(), [], 0
                self._turns += 1


def _texts(kind: Filler, seed: int) -> Iterator[str]:
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
            "workload document: this Python lacks pydoc_data, whose prose fills long prompts"
        ) from None
    yield from (topics[name] for name in sorted(topics))
