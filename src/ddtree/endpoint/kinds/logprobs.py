"""Scores from servers that give log-probabilities: they differ as the logits do."""

from collections.abc import Mapping

from ddtree.endpoint.calls import ScoredPosition
from ddtree.errors import EndpointError
from ddtree.records.sampling import Sampling


def require_raw(kind: str, sampling: Sampling | None) -> None:
    """EndpointError where processed scores are asked for: only our server knows its own noise."""
    if sampling is not None and not sampling.is_plain:
        raise EndpointError(
            f"an endpoint of kind {kind} gives raw log-probabilities, not those of a request that "
            f"samples ({sampling.label}): differences stay open"
        )


def from_log_probabilities(token_id: int, own: float, best: Mapping[int, float]) -> ScoredPosition:
    """A position from its token's log-probability and those of the best tokens."""
    ranked = sorted(best.items(), key=lambda item: (-item[1], item[0]))
    return ScoredPosition(
        token_id=token_id,
        token_logit=own,
        top_ids=tuple(token for token, _ in ranked),
        top_logits=tuple(value for _, value in ranked),
    )
