"""What extraction found in one answer."""

from dataclasses import dataclass
from typing import Literal

Method = Literal["fence", "unclosed_fence", "bare", "body", "completion", "none"]
"""How the code was found: in a closed fence; in one that never closes; without fences; as the body
of the prompt's function, without or with fences; as the continuation of a completion prompt; not
at all."""


@dataclass(frozen=True)
class Answer:
    """`program` is the preamble and the code, ready for tests; None where there is none, and then
    `missing` says why.

    `block` is the chosen one of `blocks` fenced blocks, from 0; None where no block was chosen.
    `flags` names everything unusual that was mended or noticed on the way, sorted. `lenient` is a
    program that takes a function of another name, or a method of `Solution`, for the entry point:
    a column of its own, never part of the headline. `code_sha256` is of the chosen code alone.
    """

    program: str | None
    missing: Literal["no_code", "truncated_thinking", "entry_point_missing"] | None
    method: Method
    flags: tuple[str, ...] = ()
    blocks: int = 0
    block: int | None = None
    thinking_chars: int = 0
    code_sha256: str | None = None
    lenient: str | None = None
