"""Per-depth candidates out of the drafter's logits: the only thing a tree is built from."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# Vocabulary entries per chunk of the two-step top-k: the first step reads every logit once and
# keeps chunk maxima, the second ranks K chunks of this size.
CHUNK = 64


@dataclass(frozen=True)
class Candidates:
    """The K best tokens at each of D depths, best first; equal values rank by lower token id.

    tokens: [B, D, K] int64. log_probs: [B, D, K] float32, against the full vocabulary (never
    renormalised over K, so that depths compare), at most 0, -inf where there is no candidate.
    invalid: [B] bool, True where a row held NaN or +inf; its log_probs are all -inf, so nothing
    is drafted from it, and the host must read the flag.
    """

    tokens: Tensor
    log_probs: Tensor
    invalid: Tensor


def top_candidates(logits: Tensor, topk: int, at_once: int | None = None) -> Candidates:
    """Exact top-k of logits [B, D, V] of any float type; K = min(topk, V).

    `at_once` requests are worked on together, None for all: on a CPU one request's logits stay in
    the cache between passes and a large batch's don't; the result is the same.
    """
    parts = [_top_of(part, topk) for part in torch.split(logits, at_once or max(len(logits), 1))]
    if len(parts) == 1:
        return parts[0]
    return Candidates(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.log_probs for part in parts]),
        torch.cat([part.invalid for part in parts]),
    )


def top_candidates_sorted(logits: Tensor, topk: int) -> Candidates:
    """The slow twin of `top_candidates`: a stable sort of the whole vocabulary."""
    values = logits.float()
    order = torch.sort(values, dim=-1, descending=True, stable=True).indices
    return _finish(values, order[..., : min(topk, values.shape[-1])], values)


def _top_of(logits: Tensor, topk: int) -> Candidates:
    """The K best tokens under (value descending, id ascending) lie in the K best chunks under
    (maximum descending, chunk ascending): a token in any other chunk has K tokens ahead of it."""
    values = logits.float()
    vocab = values.shape[-1]
    keep = min(topk, vocab)
    padded = values if vocab % CHUNK == 0 else _padded(values)
    maxima = padded.view(*padded.shape[:-1], -1, CHUNK).amax(-1)  # [B, D, chunks]
    if maxima.shape[-1] > keep:
        ids = torch.arange(maxima.shape[-1], device=values.device)
        best = _ordered_topk(maxima, ids.expand_as(maxima), keep)  # [B, D, K] chunk numbers
        offsets = torch.arange(CHUNK, device=values.device)
        ids = (best[..., None] * CHUNK + offsets).flatten(-2)
        pool = torch.gather(padded, -1, ids)
    else:
        ids = torch.arange(padded.shape[-1], device=values.device).expand_as(padded)
        pool = padded
    # A NaN with its sign set ranks below the padding, whose ids are no tokens; the flag tells.
    return _finish(values, _ordered_topk(pool, ids, keep).clamp(max=vocab - 1), maxima)


def _padded(values: Tensor) -> Tensor:
    return functional.pad(values, (0, -values.shape[-1] % CHUNK), value=-torch.inf)


def _finish(values: Tensor, tokens: Tensor, maxima: Tensor) -> Candidates:
    """Log-probabilities of the chosen tokens and the flag of rows that can't be trusted.

    `maxima` [B, D, any]: values that hold every NaN's and infinity's trace.
    """
    invalid = (maxima.isnan() | (maxima == torch.inf)).flatten(1).any(-1)
    # Rounding can lift a log-probability just above 0, which would let a child outweigh its
    # parent.
    log_probs = torch.gather(torch.log_softmax(values, -1), -1, tokens).clamp(max=0.0)
    dead = (torch.gather(values, -1, tokens) == -torch.inf) | invalid[:, None, None]
    return Candidates(tokens, log_probs.masked_fill(dead, -torch.inf), invalid)


def _ordered_topk(values: Tensor, ids: Tensor, keep: int) -> Tensor:
    """Ids [..., keep] of the largest values, ties to the lower id."""
    return torch.gather(ids, -1, ordered_places(values, ids, keep))


def ordered_places(values: Tensor, ids: Tensor, keep: int) -> Tensor:
    """Places [..., keep] of the largest float32 values, best first, ties to the lower id.

    torch.topk promises no order among equal values, so value and id go into one integer key.
    """
    # Adding zero turns -0.0 into 0.0, which compares equal to it but has other bits.
    bits = (values + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys = (ordered << 32) | (0x7FFFFFFF - ids)
    return keys.topk(keep, dim=-1).indices
