"""How far a token is from the edge of what sampling's filters keep.

Rounding moves logits a little, and a token near the edge may be kept in one pass and not in
another. A checker has to tell that from a filter that was not applied.
"""

import torch
from torch import Tensor

from ddtree.core.sampling import Ranked, SamplingRules


def edge_margins(ranked: Ranked, rules: SamplingRules) -> Tensor:
    """[n, K]: by how much scaled logits would have to move until a token of `ranked` changed sides.

    Above 0 for kept tokens, 0 or below for others; inf where no filter is active, -inf for tokens
    that are banned. Two ways lead over top_k's and top_p's edge: changing places with the first
    token on the other side, and, for top_p, shifting all better tokens against the rest, which
    moves the log-odds of their mass by as much.
    """
    scaled, kept = ranked.scaled, ranked.kept
    ranks = torch.arange(scaled.shape[-1], device=scaled.device)
    in_top_k = ranks < rules.top_k[:, None]
    in_top_p = (ranked.mass < rules.top_p[:, None]) | (ranks == 0)
    odds = torch.logit(rules.top_p)[:, None] - torch.logit(ranked.mass.clamp(0, 1))
    by_swap = _swap_margins(scaled, in_top_k & in_top_p)
    by_mass = torch.where(in_top_p, torch.minimum(odds, by_swap), torch.maximum(odds, by_swap))
    by_mass = by_mass.masked_fill((rules.top_p >= 1)[:, None], torch.inf)
    by_rank = _swap_margins(scaled, in_top_k)
    by_top = scaled - rules.min_p.log()[:, None]
    margins = torch.minimum(torch.minimum(by_rank, by_mass), by_top)
    # A margin of 0 has a side as well.
    margins = torch.where(kept, margins.clamp(min=0), margins.clamp(max=0))
    return margins.masked_fill(scaled == -torch.inf, -torch.inf)


def _swap_margins(scaled: Tensor, inside: Tensor) -> Tensor:
    """Distance of each token to the nearest one on the other side of a cut through the order."""
    count = inside.sum(-1, keepdim=True)
    width = scaled.shape[-1]
    last_in = scaled.gather(-1, (count - 1).clamp(min=0))
    first_out = scaled.gather(-1, count.clamp(max=width - 1))
    first_out = first_out.masked_fill(count >= width, -torch.inf)
    return torch.where(inside, scaled - first_out, scaled - last_in)
