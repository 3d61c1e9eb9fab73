"""What the nodes of drafts were good for, from the paths that servers report round by round."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from ddtree.records.requests import RequestRecord
from ddtree.records.summary import TreeUse

_PATHS = ("accepted_ranks", "accepted_nodes")


def tree_use(records: Sequence[RequestRecord]) -> TreeUse | None:
    """Over all requests' rounds together; None where no server says, and without drafts (`ar`).

    From the stats' `accepted_ranks` and `accepted_nodes`, one list for each round, and
    `tree_nodes`.
    """
    stats = [record.stats for record in records if record.error is None and record.stats]
    told = [s for s in stats if s.get("tree_nodes") and all(name in s for name in _PATHS)]
    paths = [path for s in told for path in s["accepted_ranks"]]
    if not paths:
        return None
    ranks = Counter(chain.from_iterable(paths))
    nodes = Counter(place for s in told for path in s["accepted_nodes"] for place in path)
    rounds, accepted = len(paths), ranks.total()
    on_chain = sum(map(_leading_best, paths))
    return TreeUse(
        accepted_ranks=tuple(ranks[r] / accepted for r in range(max(ranks, default=-1) + 1)),
        rescued=sum(any(path) for path in paths) / rounds,
        chain_length=1 + on_chain / rounds,
        node_use=accepted / sum(s["tree_nodes"] for s in told),
        gain_by_node=tuple(nodes[n] / rounds for n in range(max(nodes, default=-1) + 1)),
    )


def _leading_best(ranks: Sequence[int]) -> int:
    """Nodes of a path before it leaves the chain of best candidates."""
    return next((depth for depth, rank in enumerate(ranks) if rank), len(ranks))
