"""A scored position as a sampled request sees it: the engine makes it, HTTP carries it."""

from dataclasses import dataclass

# Stands for infinity in logits, scores and edges, because JSON has none.
FAR = 1e30


@dataclass(frozen=True)
class SampledScore:
    """A position as a request with sampling parameters sees it: after bias, penalties and bans.

    A score is the edited logit plus temperature times the keyed noise, so that the best score
    among kept tokens is the token to be chosen and gaps are in logits. An edge says by how much
    logits would have to move until a filter decided otherwise: above 0 for kept tokens, at most 0
    for others. Neither is infinite: a token that the target or a ban rules out has -FAR for both,
    one that no filter can drop has the edge FAR. `before` and `share`: the final distribution's
    mass of better tokens and of the given one.

    top_ids, top_scores, top_edges: tokens that are kept or nearly so, by score, best first.
    """

    score: float
    edge: float
    before: float
    share: float
    top_ids: tuple[int, ...]
    top_scores: tuple[float, ...]
    top_edges: tuple[float, ...]
