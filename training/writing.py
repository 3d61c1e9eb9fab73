"""Text that the target writes itself: many sequences side by side, token by token.

A sequence alternates between tokens that are given (a chat's headers, a function's signature) and
tokens that the target draws until it ends its turn; what is given next is a script. All of it is
tensors on the target's device, so that nothing waits for the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.models.target import Target
from training.plans import GridPlan


@dataclass(frozen=True)
class Scripts:
    """What is given, and what comes after it.

    tokens: [P, L] int64, the first lengths[p] of row p are given. temperatures: [P] at which the
    target then draws, 0 for its best token. limits: [P] int64, most tokens of a turn.
    following: [P] int64, the script after its turn's end; -1 for any of `starts`.
    """

    tokens: Tensor
    lengths: Tensor
    temperatures: Tensor
    limits: Tensor
    following: Tensor
    starts: Tensor

    def to(self, device: torch.device) -> "Scripts":
        """The same on a device."""
        return Scripts(
            self.tokens.to(device),
            self.lengths.to(device),
            self.temperatures.to(device),
            self.limits.to(device),
            self.following.to(device),
            self.starts.to(device),
        )


@dataclass(frozen=True)
class Written:
    """ids: [B, S] int64. drawn: [B, S] bool, which of them the target wrote."""

    ids: Tensor
    drawn: Tensor


def scripts_of(
    given: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    following: Sequence[int],
    starts: Sequence[int],
    limits: Sequence[int] | None = None,
) -> Scripts:
    """Scripts from lists of token ids; without `limits` a turn goes on until it ends itself."""
    unlimited = torch.iinfo(torch.int64).max
    width = max(len(tokens) for tokens in given)
    table = torch.zeros(len(given), width, dtype=torch.int64)
    for row, tokens in enumerate(given):
        table[row, : len(tokens)] = torch.tensor(tokens)
    return Scripts(
        table,
        torch.tensor([len(tokens) for tokens in given]),
        torch.tensor(temperatures),
        torch.tensor(limits or [unlimited] * len(given)),
        torch.tensor(following),
        torch.tensor(starts),
    )


def write(
    target: Target, scripts: Scripts, ends: Sequence[int], size: tuple[int, int], seed: int
) -> Written:
    """size = (B, S): B sequences of S tokens; `ends` are the tokens that end a turn."""
    batch, length = size
    device = target.device
    scripts = scripts.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    script = _any_start(scripts, batch, generator)
    place = torch.zeros_like(script)
    stops = torch.tensor(list(ends), device=device)
    ids = torch.zeros(batch, length, dtype=torch.int64, device=device)
    drawn = torch.zeros(batch, length, dtype=torch.bool, device=device)
    plan = GridPlan(target.shape, batch, length, target.embed(ids[:1, :1]))
    logits = None
    for step in range(length):
        given = place < scripts.lengths[script]
        token = scripts.tokens[script, place.clamp(max=scripts.tokens.shape[1] - 1)]
        if logits is not None:
            own = _draw(logits, scripts.temperatures[script], generator)
            token = torch.where(given, token, own)
        ids[:, step], drawn[:, step] = token, ~given
        long = place - scripts.lengths[script] + 1 >= scripts.limits[script]
        ended = ~given & (torch.isin(token, stops) | long)
        after = scripts.following[script]
        after = torch.where(after < 0, _any_start(scripts, batch, generator), after)
        script = torch.where(ended, after, script)
        place = torch.where(ended, 0, place + 1)
        plan.place = step
        positions = torch.full((batch, 1), step, device=device)
        hidden, _ = target.forward(token[:, None], positions, plan)
        logits = target.head(hidden[:, 0])
    return Written(ids, drawn)


def _any_start(scripts: Scripts, count: int, generator: torch.Generator) -> Tensor:
    chosen = torch.randint(
        len(scripts.starts), (count,), generator=generator, device=scripts.starts.device
    )
    return scripts.starts[chosen]


def _draw(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """A token for each row of logits [B, V]: Gumbel's argmax, without noise where it is 0."""
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=generator)
    scaled = logits.float() / temperatures.clamp(min=1e-6)[:, None] - noise.log()
    return torch.where(temperatures > 0, scaled.argmax(-1), logits.argmax(-1))
