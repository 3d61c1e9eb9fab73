"""What changes logits before sampling and depends on the tokens so far: bias, penalties, bans.

A tree's rows differ in their paths, so each is edited with its own path's tokens; one set of counts
for all rows would not give the target's distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

# No token: fits no banned sequence. As a sequence's padding: fits any token.
NO_TOKEN, ANY_TOKEN = -2, -1


@dataclass(frozen=True)
class LogitEdits:
    """Edits of B requests and the tokens they depend on.

    bias: [B, V] float32, added first; -inf bans a token. repetition, presence, frequency: [B]
    float64 penalties, 1, 0 and 0 without effect. prompt: [B, V] bool, tokens of the prompt.
    counts: [B, V] int32, how often the output holds each token. stops: [B, V] bool, tokens that
    are banned while waits [B] int64, the tokens still to come before one may end the text, is
    above 0. banned: [B, W, L] int64 sequences, padded on the left with ANY_TOKEN: the last token
    of one can't follow the rest of it. recent: [B, L - 1] int64, the output's end, padded on the
    left with NO_TOKEN.
    """

    bias: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    prompt: Tensor
    counts: Tensor
    stops: Tensor
    waits: Tensor
    banned: Tensor
    recent: Tensor

    def take(self, rows: Tensor) -> "LogitEdits":
        """The edits of requests `rows` [n]."""
        return LogitEdits(*(getattr(self, name).index_select(0, rows) for name in _FIELDS))

    def to(self, device: torch.device) -> "LogitEdits":
        """The same on another device."""
        return LogitEdits(*(getattr(self, name).to(device) for name in _FIELDS))

    def advance(self, tokens: Tensor) -> "LogitEdits":
        """After each request's output went on by one token; tokens: [B] int64."""
        one = tokens[:, None]
        counts = self.counts.scatter_add(1, one, torch.ones_like(one, dtype=torch.int32))
        recent = torch.cat([self.recent, one], 1)[:, 1:]
        return replace(self, counts=counts, waits=self.waits - 1, recent=recent)

    def apply(self, logits: Tensor) -> Tensor:
        """Logits [B, V] (float32 or float64) after bias, penalties and bans, in this order.

        Repetition (Keskar et al., 2019) divides a positive logit and multiplies a negative one,
        for tokens of the prompt and the output; frequency subtracts per occurrence and presence
        once, for tokens of the output.
        """
        edited = logits + self.bias.to(logits.dtype)
        used = self.counts > 0
        factor = self.repetition.to(logits.dtype)[:, None]
        repeated = torch.where(edited > 0, edited / factor, edited * factor)
        edited = torch.where(self.prompt | used, repeated, edited)
        edited = edited - self.frequency.to(logits.dtype)[:, None] * self.counts
        edited = edited - self.presence.to(logits.dtype)[:, None] * used
        edited = edited.masked_fill(self.stops & (self.waits > 0)[:, None], -torch.inf)
        return self._ban(edited)

    def _ban(self, logits: Tensor) -> Tensor:
        """-inf for tokens that would complete a banned sequence."""
        if not self.banned.shape[1]:
            return logits
        start = self.banned[:, :, :-1]
        fits = ((start == ANY_TOKEN) | (start == self.recent[:, None])).all(-1)  # [B, W]
        last = self.banned[:, :, -1]
        spare = logits.shape[-1]  # where sequences go that don't fit, and padding
        target = torch.where(fits & (last >= 0), last, spare)
        return pad(logits, (0, 1)).scatter(1, target, -torch.inf)[:, :-1]


_FIELDS = tuple(LogitEdits.__dataclass_fields__)


def concat_edits(parts: Sequence[LogitEdits]) -> LogitEdits:
    """One batch of several; sequences are padded to the longest."""
    words = max(part.banned.shape[1] for part in parts)
    length = max(part.banned.shape[2] for part in parts)

    def padded(part: LogitEdits) -> LogitEdits:
        wide, more = length - part.banned.shape[2], words - part.banned.shape[1]
        return replace(
            part,
            banned=pad(part.banned, (wide, 0, 0, more), value=ANY_TOKEN),
            recent=pad(part.recent, (length - 1 - part.recent.shape[1], 0), value=NO_TOKEN),
        )

    aligned = [padded(part) for part in parts]
    return LogitEdits(*(torch.cat([getattr(p, name) for p in aligned]) for name in _FIELDS))
