"""What a sandboxed interpreter is sent on its standard input: its own sources, and the job."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ddtree.evals.sandbox import inside
from ddtree.evals.sandbox.inside.tagged import told
from ddtree.evals.sandbox.job import Job
from ddtree.evals.tasks import AssertTests, CallTests

# In the order in which they need each other.
_MODULES = ("tagged", "results", "guard", "runner")


@dataclass(frozen=True)
class Channel:
    """How a runner reports: the number of its open file, and the word that its lines begin with."""

    descriptor: int
    word: str


def boot() -> str:
    """The program that receives the rest: an argument of the interpreter."""
    return _source("boot")


def sources() -> dict[str, str]:
    """Source texts by the names that they import each other under."""
    return {f"{inside.__name__}.{name}": _source(name) for name in _MODULES}


def payload(
    sent: Mapping[str, str], guard: Mapping[str, Any], job: Job, channel: Channel, stdin: str = ""
) -> bytes:
    """The message, its length first, and then the program's own standard input.

    UntoldError where an argument of a call is no plain data.
    """
    message = {
        "sources": sent,
        "guard": {**guard, "keep": channel.descriptor},
        "job": _job(job) | {"descriptor": channel.descriptor, "word": channel.word},
    }
    body = json.dumps(message).encode()
    return b"%010d" % len(body) + body + stdin.encode(errors="surrogateescape")


def _job(job: Job) -> dict[str, Any]:
    common = {"program": job.program, "entry_point": job.entry_point}
    match job.tests:
        case AssertTests(source):
            return common | {"kind": "assert", "tests": source}
        case CallTests(inputs, _, _, of_class):
            arguments = [told(item) for item in inputs]
            return common | {"kind": "call", "inputs": arguments, "of_class": of_class}
        case _:
            return common | {"kind": "script"}


def _source(name: str) -> str:
    return resources.files(inside).joinpath(f"{name}.py").read_text(encoding="utf-8")
