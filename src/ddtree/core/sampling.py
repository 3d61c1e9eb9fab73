"""One token from the target's processed distribution, by Gumbel's argmax.

The distribution of a row of logits, in this order: temperature, top_k, top_p, min_p, each on what
the one before kept, renormalised. Exactly k tokens survive top_k; equal logits rank by lower id.
The token is argmax(log p + noise) over what survives, which is one draw from p (Gumbel, 1954), and
with noise keyed by (seed, position, token id) the same draw for every method and batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.return_types import topk

from ddtree.core.noise import APPROXIMATION_ERROR, approximate_gumbel, gumbel

# Most nuclei lie within this many best tokens; a full sort of a row costs ten times as much.
POOL = 1024
# Tokens whose exact noise is compared, taken by approximate noise: more than one within its error
# is already a rarity.
_CONTENDERS = 4


@dataclass(frozen=True)
class SamplingRules:
    """How each of B requests chooses its tokens: [B] tensors on the logits' device.

    seeds: int64. temperatures: float64, 0 takes the best token. top_k: int64, at least 1; V or
    more keeps all. top_p: float64 in (0, 1]. min_p: float64 in [0, 1]. joint: top_p counts mass
    over the whole vocabulary instead of what top_k kept, as SGLang's sampler does.
    """

    seeds: Tensor
    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    joint: bool = False

    def take(self, rows: Tensor) -> "SamplingRules":
        """The rules of requests `rows` [n]."""
        return SamplingRules(
            self.seeds.index_select(0, rows),
            self.temperatures.index_select(0, rows),
            self.top_k.index_select(0, rows),
            self.top_p.index_select(0, rows),
            self.min_p.index_select(0, rows),
            self.joint,
        )


@dataclass(frozen=True)
class Ranked:
    """Tokens of n rows, best first, equal logits by lower id.

    ids: [n, K] int64. scaled: [n, K] float64, (logit - the row's largest) / temperature.
    kept: [n, K] bool, what the filters keep. mass: [n, K] float64, the probability of all better
    tokens as top_p sees it: after temperature and, unless the rules are joint, top_k.
    """

    ids: Tensor
    scaled: Tensor
    kept: Tensor
    mass: Tensor


def sample(logits: Tensor, rules: SamplingRules, positions: Tensor) -> Tensor:
    """Tokens [n] drawn from logits [n, V] (float32 or float64, temperatures above 0).

    positions: [n] absolute positions of the tokens to be drawn. -inf logits have no chance.
    """
    filtered = (rules.top_k < logits.shape[-1]) | (rules.top_p < 1)
    if bool(filtered.all()):
        return _sample_filtered(logits, rules, positions)
    if not bool(filtered.any()):
        return _sample_whole(logits, rules, positions)
    tokens = torch.empty_like(positions)
    for rows, draw in ((filtered, _sample_filtered), (~filtered, _sample_whole)):
        some = rows.nonzero()[:, 0]
        tokens[some] = draw(logits[some], rules.take(some), positions[some])
    return tokens


def sample_unread(
    logits: Tensor, rules: SamplingRules, positions: Tensor, *, filtered: bool
) -> tuple[Tensor, Tensor]:
    """`sample` for logits [n, V] without a read-back, for a GPU that the host runs ahead of.

    filtered: whether any row has top_k or top_p, which the host knows. Returns tokens [n] and
    [n] bool, where they are those of `sample`: elsewhere the row's pool decides nothing.
    """
    if filtered:
        ranked, sure = _pool(logits, _scale(logits, rules.temperatures), rules)
        ids, scaled, kept = ranked.ids, ranked.scaled, ranked.kept
    else:
        ids, scaled, kept = _unordered(logits, rules)
        sure = torch.ones_like(positions, dtype=torch.bool)
    values, few = _contenders(ids, scaled, kept, rules, positions)
    return _best_contender(ids, values, few.indices, rules, positions), sure


def _sample_filtered(logits: Tensor, rules: SamplingRules, positions: Tensor) -> Tensor:
    """Rows with top_k or top_p: from their best tokens, or from all where those don't decide."""
    pool, sure = _pool(logits, _scale(logits, rules.temperatures), rules)
    tokens = _draw(pool.ids, pool.scaled, pool.kept, rules, positions)
    if not bool(sure.all()):
        rows = (~sure).nonzero()[:, 0]
        some = rules.take(rows)
        ranked = rank(logits[rows], some)
        tokens[rows] = _draw(ranked.ids, ranked.scaled, ranked.kept, some, positions[rows])
    return tokens


def _sample_whole(logits: Tensor, rules: SamplingRules, positions: Tensor) -> Tensor:
    """Rows whose tokens need no order."""
    ids, scaled, kept = _unordered(logits, rules)
    return _draw(ids, scaled, kept, rules, positions)


def _unordered(logits: Tensor, rules: SamplingRules) -> tuple[Tensor, Tensor, Tensor]:
    """ids, scaled and kept [n, V] of rows without top_k and top_p: min_p looks at the best token
    alone."""
    scaled = _scale(logits, rules.temperatures)
    ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(scaled)
    return ids, scaled, scaled >= rules.min_p.log()[:, None]


def rank(logits: Tensor, rules: SamplingRules) -> Ranked:
    """All V tokens of logits [n, V] with what the filters keep: the slow twin of the pool that
    `sample` looks at, and what scores are made of."""
    ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices
    scaled = _scale(logits, rules.temperatures)
    return _filter(ids, scaled.gather(-1, ids), scaled.exp().sum(-1), rules)


def log_probabilities(logits: Tensor, rules: SamplingRules) -> Tensor:
    """The processed distribution of logits [n, V] as log-probabilities [n, V] in float64, -inf
    for what a filter removed."""
    ranked = rank(logits, rules)
    kept = ranked.scaled.masked_fill(~ranked.kept, -torch.inf)
    return torch.empty_like(kept).scatter_(-1, ranked.ids, kept.log_softmax(-1))


def best_token(logits: Tensor) -> Tensor:
    """The argmax of logits [..., V], the lowest id among equals."""
    return logits.max(-1).indices


def _scale(logits: Tensor, temperatures: Tensor) -> Tensor:
    """(logit - largest) / temperature in float64: no temperature above 0 overflows to NaN."""
    values = logits.double()
    return (values - values.amax(-1, keepdim=True)) / temperatures[:, None]


def _pool(logits: Tensor, scaled: Tensor, rules: SamplingRules) -> tuple[Ranked, Tensor]:
    """The best POOL tokens filtered, and [n] bool where that is what the whole row would give."""
    size = min(POOL, logits.shape[-1])
    # topk promises no order among equals, and takes any of those equal to its last value.
    found = logits.topk(size, dim=-1)
    ids, order = found.indices.sort(-1)
    values = found.values.gather(-1, order)
    values, order = torch.sort(values, dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    whole = size == logits.shape[-1]
    certain = values > values[:, -1:] if not whole else torch.ones_like(values, dtype=torch.bool)
    ranked = _filter(ids, scaled.gather(-1, ids), scaled.exp().sum(-1), rules)
    count = certain.sum(-1)
    # Decided within the certain tokens: by top_k, or by top_p where top_k keeps everything (its
    # mass would need the order beyond the pool otherwise).
    ends = (ranked.mass >= rules.top_p[:, None]) & certain
    sure = (rules.top_k <= count) | ((rules.top_k >= logits.shape[-1]) & ends.any(-1))
    return ranked, sure | whole


def _filter(ids: Tensor, scaled: Tensor, total: Tensor, rules: SamplingRules) -> Ranked:
    """Filters on tokens in order; `total` [n] is the sum of exp(scaled) over the vocabulary.

    Sums run in an order that doesn't depend on how many tokens are looked at, so that the pool and
    the whole row agree on a token at top_p's edge.
    """
    ranks = torch.arange(ids.shape[-1], device=ids.device)
    in_top_k = ranks < rules.top_k[:, None]
    weights = scaled.exp() * in_top_k
    summed = weights.cumsum(-1)
    limited = rules.top_k < ids.shape[-1]
    if not rules.joint:
        total = torch.where(limited, summed[:, -1], total)
    mass = pad(summed[:, :-1], (1, 0)) / total[:, None]
    # The first token is always kept: rounding can't empty a row.
    in_top_p = (mass < rules.top_p[:, None]) | (ranks == 0) | (rules.top_p >= 1)[:, None]
    in_min_p = scaled >= rules.min_p.log()[:, None]
    return Ranked(ids, scaled, in_top_k & in_top_p & in_min_p, mass)


def _draw(
    ids: Tensor, scaled: Tensor, kept: Tensor, rules: SamplingRules, positions: Tensor
) -> Tensor:
    """argmax(scaled + noise) over kept tokens [n, K], the lowest id among equals."""
    values, few = _contenders(ids, scaled, kept, rules, positions)
    lead = few.values[:, :1] - few.values[:, 1:2]
    if bool((lead > 2 * APPROXIMATION_ERROR).all()):
        return ids.gather(-1, few.indices[:, :1])[:, 0]
    return _best_contender(ids, values, few.indices, rules, positions)


def _contenders(
    ids: Tensor, scaled: Tensor, kept: Tensor, rules: SamplingRules, positions: Tensor
) -> tuple[Tensor, topk]:
    """`scaled` [n, K] of kept tokens, -inf for others, and the few best by approximate noise."""
    values = scaled.masked_fill(~kept, -torch.inf)
    rough = values + approximate_gumbel(rules.seeds[:, None], positions[:, None], ids)
    return values, rough.topk(min(_CONTENDERS, ids.shape[-1]), dim=-1)


def _best_contender(
    ids: Tensor, values: Tensor, places: Tensor, rules: SamplingRules, positions: Tensor
) -> Tensor:
    """The best of the tokens at `places` [n, C] of ids and values [n, K], by exact noise."""
    tokens, order = ids.gather(-1, places).sort(-1)
    noise = gumbel(rules.seeds[:, None], positions[:, None], tokens)
    exact = values.gather(-1, places.gather(-1, order)) + noise
    return tokens.gather(-1, exact.max(-1, keepdim=True).indices)[:, 0]
