"""How far a token is from the edge of what sampling's filters keep.

Rounding moves logits a little, and a token near the edge may be kept in one pass and not in
another. A checker has to tell that from a filter that was not applied.
"""

import torch
from torch import Tensor

from ddtree.core.sampling import Ranked, SamplingRules


def edge_margins(ranked: Ranked, rules: SamplingRules) -> Tensor:
    """[n, K]: by how much scaled logits would have to move apart until a token changed sides.

    Above 0 for kept tokens, 0 or below for others; inf where no filter is active, -inf for tokens
    that are banned. A promise: while no logit moves by more than half a token's margin, the token
    stays on its side.
    """
    scaled, kept = ranked.scaled, ranked.kept
    ranks = torch.arange(scaled.shape[-1], device=scaled.device)
    by_rank = _rank_margins(scaled, ranks < rules.top_k[:, None])
    odds = torch.logit(rules.top_p)[:, None] - torch.logit(ranked.mass.clamp(0, 1))
    in_top_p = (ranked.mass < rules.top_p[:, None]) | (ranks == 0)
    by_mass = _mass_margins(scaled, odds, in_top_p)
    by_mass = by_mass.masked_fill((rules.top_p >= 1)[:, None], torch.inf)
    by_top = scaled - rules.min_p.log()[:, None]
    margins = torch.minimum(torch.minimum(by_rank, by_mass), by_top)
    # A margin of 0 has a side as well.
    margins = torch.where(kept, margins.clamp(min=0), margins.clamp(max=0))
    return margins.masked_fill(scaled == -torch.inf, -torch.inf)


def _rank_margins(scaled: Tensor, inside: Tensor) -> Tensor:
    """Distance of each token to the nearest one on the other side of a cut through the order."""
    count = inside.sum(-1, keepdim=True)
    width = scaled.shape[-1]
    last_in = scaled.gather(-1, (count - 1).clamp(min=0))
    first_out = scaled.gather(-1, count.clamp(max=width - 1))
    first_out = first_out.masked_fill(count >= width, -torch.inf)
    return torch.where(inside, scaled - first_out, scaled - last_in)


def _mass_margins(scaled: Tensor, odds: Tensor, inside: Tensor) -> Tensor:
    """Distance to top_p's edge; odds [n, K]: the log-odds that the mass before each place of the
    order is short of top_p.

    A token leaves if it falls to some place j and the mass before that place has come to top_p,
    which takes max(scaled - scaled[j], odds[j]) for the least such j, and enters likewise. Down
    the order the first term grows and the second falls, so the least maximum is where they cross.
    """
    reach = scaled + odds
    below = torch.searchsorted(-reach, -scaled).clamp(min=1)
    above, width = below - 1, scaled.shape[-1]
    at_below = scaled.gather(-1, below.clamp(max=width - 1))
    at_below = at_below.masked_fill(below >= width, -torch.inf)
    leaving = torch.minimum(scaled - at_below, odds.gather(-1, above))
    entering = torch.maximum(
        scaled - scaled.gather(-1, above), odds.gather(-1, below.clamp(max=width - 1))
    )
    return torch.where(inside, leaving, entering)
