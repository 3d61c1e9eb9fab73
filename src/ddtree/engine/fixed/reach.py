"""What the rows of one forward pass see when everything about them is in tensors.

Nothing here is read by the host and no shape depends on a request, so that a pass can be recorded
once and replayed for other requests.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

# Rows whose marks fit one word.
WORD = 32


@dataclass(frozen=True)
class Reach:
    """B requests with S rows each.

    first: [B] int64, first cell of a request's run of committed tokens. held: [B] int64, how many
    of them there are. own: [B] int64, cell of row 0; row i's is own + i. positions: [B, S] int64,
    absolute. bits: [B, S, words] int32, bit j % 32 of word j // 32 of row i: whether it sees row j.
    windows: [B] int64 committed tokens that are seen, None for all. anchored: windows end at row 0
    (else each row's own at itself, its fellow rows within it included). ring: cells that a run
    wraps round in; 0 where its column c holds position c. columns: `held` is never more.
    """

    first: Tensor
    held: Tensor
    own: Tensor
    positions: Tensor
    bits: Tensor
    windows: Tensor | None
    anchored: bool
    ring: int
    columns: int

    @functools.cached_property
    def cells(self) -> Tensor:
        """[B * S]: where the rows' keys go."""
        size = self.positions.shape[1]
        return (self.own[:, None] + torch.arange(size, device=self.own.device)).flatten()

    def lowest(self, window: int | None) -> Tensor | None:
        """[B, S] int64: the oldest position that each row sees in a layer with this window, None
        where that is no limit."""
        limits = self.windows
        if window is not None:
            limits = (
                torch.full_like(self.held, window) if limits is None else limits.clamp(max=window)
            )
        if limits is None:
            return None
        if self.anchored:
            return (self.positions[:, :1] - limits[:, None]).expand_as(self.positions).contiguous()
        return self.positions - limits[:, None] + 1

    @property
    def limits_own(self) -> bool:
        """Whether a layer's window hides rows of this pass too, as it does in a target: a
        drafter's block sees itself whole."""
        return self.ring == 0


def pack_bits(visible: Tensor) -> Tensor:
    """[..., S, n] bool -> [..., S, ceil(n / 32)] int32."""
    size = visible.shape[-1]
    padded = torch.nn.functional.pad(visible, (0, -size % WORD))
    words = padded.view(*padded.shape[:-1], -1, WORD).long()
    shifts = torch.arange(WORD, device=visible.device)
    # Bit 31 is the sign's: the sum of up to 2^32 - 1 wraps to the int32 of the same bits.
    packed: Tensor = (words << shifts).sum(-1).to(torch.int32)
    return packed


def unpack_bits(bits: Tensor, size: int) -> Tensor:
    """The reverse of `pack_bits`: [..., S, words] -> [..., S, size] bool."""
    shifts = torch.arange(WORD, device=bits.device, dtype=torch.int32)
    marks = ((bits[..., None] >> shifts) & 1).flatten(-2)
    return marks[..., :size].bool()
