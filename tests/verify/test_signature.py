"""Where faults lie, and what that suggests."""

import pytest
from synthetic import output

from ddtree.verify.classify import Finding
from ddtree.verify.grade import OutputGrade
from ddtree.verify.outputs import Comparison, Output
from ddtree.verify.signature import locate, places, signature

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


def of_kind(belongs, count=6):
    """Indices of the first tokens of a kind."""
    length = 1 + sum(len(path) + 1 for path in RANKS * 8)
    return [i for i, place in enumerate(places(RANKS * 8, length)) if belongs(place)][:count]


@pytest.mark.parametrize(
    ("belongs", "words"),
    [
        (lambda p: p.kind == "draft" and p.depth == 1, "accepted without being verified"),
        (lambda p: p.kind == "draft", "without the target's own choice"),
        (lambda p: p.beside, "only paths beside"),
        (lambda p: p.kind == "bonus" and p.depth > 1, "below the root's row"),
        (lambda p: True, "everywhere"),
        (lambda p: p.kind == "bonus" and p.depth == 1, "everywhere"),
    ],
)
def test_hints(belongs, words):
    indices = of_kind(belongs)
    found = signature(graded(indices, ranks=RANKS * 8))
    assert found is not None
    assert words in found.hint
    assert found.faults == len(indices)


def test_few_faults_say_nothing():
    assert "too few" in signature(graded((3, 4))).hint


def test_faults_anywhere_are_not_blamed_on_what_is_common():
    """Most tokens come after a rejection; faults that fall evenly say nothing of it."""
    evenly = graded(range(3, 50, 4), ranks=RANKS * 8)
    assert "everywhere" in signature(evenly).hint
    plain = graded((3, 5, 7, 9), ranks=((),) * 10)
    assert "everywhere" in signature(plain).hint


def test_faults_only_after_a_rejection():
    """A long first round without one, then nothing right."""
    ranks = ((0,) * 12, *((),) * 5)
    assert "after a round that rejected" in signature(graded(range(14, 19), ranks=ranks)).hint


def test_findings_are_located():
    ((arm, grade),) = graded((2, 4), ranks=RANKS)
    first, second = locate([arm], [grade])
    assert (first.output, first.index, first.place) == (0, 2, "draft at depth 2")
    assert second.place == "bonus at depth 1"
    assert "output 0, token 4, bonus at depth 1" in str(second)


def test_filtered_tokens_name_the_filters():
    assert "top_p" in signature(graded((1, 4, 6), filtered=True)).hint


def test_explained_findings_are_no_faults():
    assert signature(graded((1, 2, 3), verdict="near-tie")) is None
    assert signature([]) is None


def test_shares_by_place():
    found = signature(graded((1, 5)))
    assert found.by_place == {"draft at depth 1": "2/6"}
