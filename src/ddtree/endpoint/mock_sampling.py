"""How the mock samples: a few tokens' logits plus temperature times noise, filtered in order."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddtree.records.sampling import Sampling
from ddtree.records.scores import FAR

FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed")


@dataclass(frozen=True)
class Candidates:
    """The tokens that a position may give, with their logits, best first."""

    token_ids: Sequence[int]
    logits: Sequence[float]
    position: int


def sampling_of(body: dict[str, Any]) -> Sampling | None:
    """The sampling fields of a request; None without any."""
    given = {name: body[name] for name in FIELDS if name in body}
    return Sampling(**given) if given else None


def choose(candidates: Candidates, sampling: Sampling) -> int:
    """The token that a request gets: the kept one with the highest score."""
    if sampling.temperature == 0:
        return candidates.token_ids[0]
    return _by_score(candidates, sampling)[0][1]


def sampled_scores(
    candidates: Candidates, token_id: int, other_logit: float, sampling: Sampling
) -> dict[str, Any]:
    """What scoring says of a position beside its raw logits; any token that is no candidate has
    `other_logit` and no probability."""
    ids = list(candidates.token_ids)
    shares = [*_shares(candidates.logits, sampling), 0.0]
    place = ids.index(token_id) if token_id in ids else len(ids)
    logit = [*candidates.logits, other_logit][place]
    dropped = place >= _kept(candidates.logits, sampling) and sampling.temperature > 0
    best = _by_score(candidates, sampling)
    return {
        "scores": _score(logit, candidates.position, token_id, sampling),
        # Nothing here is rounded, so every filter's edge is that far.
        "edges": -FAR if dropped and _filters(sampling) else FAR,
        "before": sum(shares[:place]),
        "share": shares[place],
        "best_ids": [token for _, token in best],
        "best_scores": [score for score, _ in best],
        "best_edges": [FAR for _ in best],
    }


def _by_score(candidates: Candidates, sampling: Sampling) -> list[tuple[float, int]]:
    """(score, token id) of what the filters keep, best first."""
    kept = _kept(candidates.logits, sampling)
    tokens = zip(candidates.token_ids[:kept], candidates.logits[:kept], strict=True)
    scores = [(_score(z, candidates.position, token, sampling), token) for token, z in tokens]
    return sorted(scores, reverse=True)


def _filters(sampling: Sampling) -> bool:
    return (sampling.top_p, sampling.top_k, sampling.min_p) != (1.0, 0, 0.0)


def _kept(logits: Sequence[float], sampling: Sampling) -> int:
    """How many of the best top_k, then top_p, then min_p keep."""
    if sampling.temperature == 0:
        return len(logits)
    limited = _weights(logits, sampling)[: sampling.top_k or len(logits)]
    limit, before, count = sampling.top_p * sum(limited), 0.0, 0
    for weight in limited:
        count += before < limit and weight >= sampling.min_p
        before += weight
    return count


def _shares(logits: Sequence[float], sampling: Sampling) -> list[float]:
    """Probabilities of what the filters keep, 0 for the rest."""
    if sampling.temperature == 0:
        return [1.0, *(0.0 for _ in logits[1:])]
    kept = _kept(logits, sampling)
    weights = _weights(logits, sampling)[:kept]
    return [*(weight / sum(weights) for weight in weights), *(0.0 for _ in logits[kept:])]


def _weights(logits: Sequence[float], sampling: Sampling) -> list[float]:
    """Probabilities over the best one's."""
    return [math.exp((logit - logits[0]) / sampling.temperature) for logit in logits]


def _score(logit: float, position: int, token_id: int, sampling: Sampling) -> float:
    if sampling.temperature == 0:
        return logit
    return logit + sampling.temperature * _gumbel(sampling.seed, position, token_id)


def _gumbel(seed: int | None, position: int, token_id: int) -> float:
    """Noise keyed as a correct server's is, so that method and batch don't matter."""
    digest = hashlib.sha256(f"{seed}:{position}:{token_id}".encode()).digest()
    uniform = (int.from_bytes(digest[:4], "big") + 0.5) / 2**32
    return -math.log(-math.log(uniform))
