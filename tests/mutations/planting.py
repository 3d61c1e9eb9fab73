"""Planting a bug: a module's source is changed, run again, and takes the place of the original."""

import contextlib
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Mutation:
    """A bug in `module`: each (old, new) edit's old text occurs exactly once in its source.

    caught_by: checks that must fail with `error`. harmless_to: a check that must still pass, which
    shows that the first ones see something that it does not.
    """

    name: str
    module: str
    edits: tuple[tuple[str, str], ...]
    caught_by: tuple[Callable[[], None], ...]
    harmless_to: Callable[[], None] | None = None
    error: type[Exception] = AssertionError


def mutated_source(mutation: Mutation) -> str:
    """The module's source with the bug in it."""
    source = Path(inspect.getfile(importlib.import_module(mutation.module))).read_text()
    for old, new in mutation.edits:
        found = source.count(old)
        assert found == 1, f"{mutation.module} has {found} times {old!r}: restate this mutation"
        source = source.replace(old, new)
    return source


@contextlib.contextmanager
def planted(mutation: Mutation) -> Iterator[None]:
    """While open, the module's functions and classes are the mutant's, wherever imported."""
    original = importlib.import_module(mutation.module)
    mutant = types.ModuleType(original.__name__)
    code = compile(mutated_source(mutation), f"<{mutation.name}>", "exec")
    exec(code, mutant.__dict__)
    swaps = {
        id(value): getattr(mutant, name)
        for name, value in vars(original).items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == original.__name__
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in ("ddtree", "support", "training"):
                for attribute, value in list(vars(module).items()):
                    if id(value) in swaps:
                        patch.setattr(module, attribute, swaps[id(value)])
        yield


def assert_caught(mutation: Mutation) -> None:
    """With the bug planted its checks fail, and the one that it is harmless to passes."""
    with planted(mutation):
        for check in mutation.caught_by:
            with pytest.raises(mutation.error):
                check()
        if mutation.harmless_to is not None:
            mutation.harmless_to()
