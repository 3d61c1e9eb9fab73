"""Paths by hand: what they say of ranks, rescues and smaller trees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_metrics import request

from ddtree.records import tree_use as module
from ddtree.records.requests import RequestRecord
from ddtree.records.tree_use import tree_use
from mutations.planting import Mutation, planted


def drafted(
    ranks: list[list[int]], nodes: list[list[int]], tree_nodes: int, **more: object
) -> RequestRecord:
    stats = {"accepted_ranks": ranks, "accepted_nodes": nodes, "tree_nodes": tree_nodes}
    return request(stats={**stats, **more})


def check_a_hand_made_run() -> None:
    # Three rounds over trees of 4 nodes: two nodes on the chain, one node beside it, none.
    record = drafted([[0, 0], [0, 2], []], [[0, 1], [0, 3], []], 12)
    found = module.tree_use([record])
    assert found is not None
    assert found.accepted_ranks == (0.75, 0.0, 0.25)
    assert found.rescued == pytest.approx(1 / 3)
    # On the chain alone: 2, 1 and 0 accepted.
    assert found.chain_length == pytest.approx(1 + 3 / 3)
    assert found.node_use == pytest.approx(4 / 12)
    assert found.gain_by_node == (
        pytest.approx(2 / 3),
        pytest.approx(1 / 3),
        0,
        pytest.approx(1 / 3),
    )


def test_a_hand_made_run() -> None:
    check_a_hand_made_run()


def test_a_path_that_comes_back_to_the_best_candidate_has_still_left_the_chain() -> None:
    def check() -> None:
        found = module.tree_use([drafted([[0, 1, 0]], [[0, 2, 3]], 4)])
        assert found is not None
        assert (found.rescued, found.chain_length) == (1.0, 2.0)

    check()
    bug = Mutation(
        "counts best candidates anywhere",
        "ddtree.records.tree_use",
        (
            (
                "next((depth for depth, rank in enumerate(ranks) if rank), len(ranks))",
                "sum(rank == 0 for rank in ranks)",
            ),
        ),
        (check,),
    )
    with planted(bug), pytest.raises(AssertionError):
        check()


def test_a_chain_never_rescues() -> None:
    found = tree_use([drafted([[0, 0, 0], [0]], [[0, 1, 2], [0]], 14)])
    assert found is not None
    assert (found.accepted_ranks, found.rescued, found.chain_length) == ((1.0,), 0.0, 3.0)


def test_nothing_accepted_is_no_nothing() -> None:
    found = tree_use([drafted([[], []], [[], []], 8)])
    assert found is not None
    assert (found.accepted_ranks, found.gain_by_node, found.node_use) == ((), (), 0.0)
    assert found.chain_length == 1.0


def test_who_drafts_nothing_or_says_nothing_has_no_tree() -> None:
    assert tree_use([]) is None
    assert tree_use([request(stats=None)]) is None
    assert tree_use([request(stats={"tree_nodes": 9, "rounds": 2})]) is None
    assert tree_use([drafted([[], []], [[], []], 0)]) is None
    failed = drafted([[0]], [[0]], 4)
    assert tree_use([RequestRecord(**{**failed.__dict__, "error": "stall: x"})]) is None


@given(
    st.lists(
        st.lists(st.integers(0, 7), max_size=4, unique=True).map(sorted), min_size=1, max_size=12
    ),
    st.integers(0, 8),
)
def test_gains_sum_to_the_acceptance_length_of_a_smaller_tree(
    paths: list[list[int]], budget: int
) -> None:
    # Nodes come in best-first order, parents first: cutting to `budget` nodes cuts paths.
    found = tree_use([drafted([[0] * len(p) for p in paths], paths, 8 * len(paths))])
    assert found is not None
    cut = sum(sum(node < budget for node in path) for path in paths) / len(paths)
    assert sum(found.gain_by_node[:budget]) == pytest.approx(cut)
