"""Accounts of one request's rounds, by the names that all kinds share.

`source` says who counted: the server for this request, the server's counters over a block, or
nobody, so that it is an estimate. Keys that nobody can know are left out.
"""

from collections.abc import Sequence
from typing import Any, Literal

Source = Literal["server", "counters", "estimate"]


def account(
    completion_tokens: int,
    rounds: int,
    num_accepted: int,
    source: Source,
    *,
    histogram: Sequence[int] | None = None,
    tree_nodes: int | None = None,
) -> dict[str, Any]:
    """A request of `rounds` rounds that accepted `num_accepted` draft tokens in all.

    The first token comes from the prompt and every round adds a bonus; what does not fit into
    `completion_tokens` was cut by a stop or a limit. `histogram[a]` counts rounds that accepted a.
    """
    stats: dict[str, Any] = {
        "completion_tokens": completion_tokens,
        "rounds": rounds,
        "num_accepted": num_accepted,
        "cut_tokens": 1 + num_accepted + rounds - completion_tokens,
        "source": source,
    }
    if histogram is not None:
        stats["accepted_histogram"] = list(histogram)
    if tree_nodes is not None:
        stats["tree_nodes"] = tree_nodes
    return stats


def round_paths(by_token: Sequence[int]) -> list[tuple[int, ...]]:
    """The drafted tokens' values of each round, out of one value a token: below 0 for the prompt's
    token, which comes first, and for the bonus that ends a round unless the answer was cut."""
    paths: list[tuple[int, ...]] = []
    path: list[int] = []
    for value in by_token[1:]:
        if value < 0:
            paths.append(tuple(path))
            path = []
        else:
            path.append(value)
    return [*paths, tuple(path)] if path else paths


def plain_account(completion_tokens: int) -> dict[str, Any]:
    """Decoding without drafts: a token a round, by definition."""
    rounds = max(completion_tokens - 1, 0)
    return account(completion_tokens, rounds, 0, "server", histogram=[rounds], tree_nodes=0)


def estimated_account(chunk_tokens: Sequence[int]) -> dict[str, Any]:
    """Rounds guessed from a stream's chunks: a chunk a round, after the first token.

    A server that gathers rounds into a chunk, or splits one, makes it wrong.
    """
    counts = [n for n in chunk_tokens if n > 0]
    if not counts:
        return account(0, 0, 0, "estimate", histogram=[])
    per_round = [n for n in (counts[0] - 1, *counts[1:]) if n > 0]
    histogram = [0] * max(per_round, default=0)
    for n in per_round:
        histogram[n - 1] += 1
    accepted = sum(per_round) - len(per_round)
    return account(sum(counts), len(per_round), accepted, "estimate", histogram=histogram)
