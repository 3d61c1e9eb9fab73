"""Where faults lie, and what that suggests."""

import pytest
from synthetic import output

from ddtree.verify.classify import Finding
from ddtree.verify.grade import OutputGrade
from ddtree.verify.outputs import Comparison, Output
from ddtree.verify.signature import places, signature

# First token; two drafts (the second beside the best) and a bonus; a bonus; a draft and a bonus.
RANKS = ((0, 1), (), (0,))
COUNT = 7


def test_places():
    found = places(RANKS, COUNT)
    assert [(p.kind, p.depth, p.beside, p.after_reject) for p in found] == [
        ("first", 0, False, False),
        ("draft", 1, False, False),
        ("draft", 2, True, False),
        ("bonus", 3, True, False),
        ("bonus", 1, False, True),
        ("draft", 1, False, True),
        ("bonus", 2, False, True),
    ]
    assert places(RANKS, 3) == found[:3]


def graded(indices, ranks=RANKS * 3, verdict="bug", filtered=False):
    count = 1 + sum(len(path) + 1 for path in ranks)
    arm = output((1,), range(count))
    arm = Output(arm.prompt, arm.token_ids, "length", count, ranks=ranks)
    findings = tuple(Finding(i, 1, 2, None, 9.0, 72.0, verdict, filtered=filtered) for i in indices)
    return [(arm, OutputGrade("bug", Comparison(False, 0, None), findings, count))]


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ((1, 5, 7, 11), "accepted without being verified"),
        ((1, 2, 5, 8), "without the target's own choice"),
        ((2, 3, 8, 9), "only paths beside"),
        ((3, 6, 9, 12), "below the root's row"),
        ((4, 6, 10, 12), "after a round that rejected"),
        ((0, 1, 3, 4), "everywhere"),
        ((3, 4), "too few"),
    ],
)
def test_hints(indices, words):
    found = signature(graded(indices))
    assert found is not None
    assert words in found.hint
    assert found.faults == len(indices)


def test_filtered_tokens_name_the_filters():
    assert "top_p" in signature(graded((1, 4, 6), filtered=True)).hint


def test_explained_findings_are_no_faults():
    assert signature(graded((1, 2, 3), verdict="near-tie")) is None
    assert signature([]) is None


def test_shares_by_place():
    found = signature(graded((1, 5)))
    assert found.by_place == {"draft at depth 1": "2/6"}
