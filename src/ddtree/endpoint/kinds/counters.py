"""vLLM's speculation counters: what a block of requests drafted, as differences of /metrics."""

from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ddtree.errors import EndpointError

_DRAFTS = "vllm:spec_decode_num_drafts"
_NODES = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True)
class Counters:
    """Since the server started: rounds, draft tokens, accepted ones, and how many rounds accepted
    at least `i + 1` drafts (`by_position[i]`, empty where it isn't told)."""

    rounds: int
    draft_tokens: int
    accepted: int
    by_position: tuple[int, ...] = ()


def parse_counters(text: str) -> Counters:
    """From the text of /metrics, summed over engines; zeros on a server that doesn't speculate.

    EndpointError when it isn't in Prometheus's format.
    """
    totals: dict[str, int] = {}
    positions: dict[int, int] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if name == _BY_POSITION:
                    place = int(sample.labels["position"])
                    positions[place] = positions.get(place, 0) + int(sample.value)
                elif name in (_DRAFTS, _NODES, _ACCEPTED):
                    totals[name] = totals.get(name, 0) + int(sample.value)
    except (ValueError, KeyError, IndexError) as error:
        raise EndpointError(f"/metrics: not in Prometheus's format ({error!r})") from None
    by_position = tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1))
    return Counters(
        rounds=totals.get(_DRAFTS, 0),
        draft_tokens=totals.get(_NODES, 0),
        accepted=totals.get(_ACCEPTED, 0),
        by_position=by_position,
    )


def counter_stats(before: Counters, after: Counters) -> dict[str, Any] | None:
    """Rounds between two readings, by the names of a request's stats, `source` "counters".

    `accepted_histogram` follows from the counts by position. None when nothing was drafted.
    EndpointError when a counter fell: the server was started anew in between.
    """
    rounds = after.rounds - before.rounds
    nodes = after.draft_tokens - before.draft_tokens
    accepted = after.accepted - before.accepted
    old = (*before.by_position, *(0 for _ in after.by_position[len(before.by_position) :]))
    survivors = [new - was for new, was in zip(after.by_position, old, strict=False)]
    if min(rounds, nodes, accepted, *survivors) < 0:
        raise EndpointError("/metrics: a counter fell, so the server was started anew meanwhile")
    if rounds == 0:
        return None
    stats: dict[str, Any] = {
        "rounds": rounds,
        "num_accepted": accepted,
        "tree_nodes": nodes,
        "source": "counters",
    }
    if survivors:
        at_least = [rounds, *survivors, 0]
        stats["accepted_histogram"] = [
            at_least[i] - at_least[i + 1] for i in range(len(at_least) - 1)
        ]
    return stats
