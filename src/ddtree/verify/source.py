"""What the procedure needs of an engine or a server: to generate, and to say what it is."""

from dataclasses import dataclass
from typing import Protocol

from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.verify.outputs import Output


@dataclass(frozen=True)
class Call:
    """One request: `arm` decodes `prompt` up to `max_tokens`, with a named seed if it samples."""

    prompt: tuple[int, ...]
    max_tokens: int
    arm: Arm
    sampling: Sampling


class Source(Protocol):
    """Generates; calls may overlap."""

    async def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt."""
        ...

    async def generate(self, call: Call) -> Output:
        """The whole output; DDTreeError when there is none."""
        ...
