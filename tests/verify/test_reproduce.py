"""A suspect is explained by seeing the target choose its token, and by nothing less."""

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest
from synthetic import ULP, Target, output

from ddtree.records.sampling import Sampling
from ddtree.verify.grade import OutputGrade, grade_baseline_output, grade_cell, grade_output
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import Position
from mutations.planting import Mutation, assert_caught

PROMPT = (7, 3, 9)
LENGTH = 24
AT = 15
SUSPECT = 3 * ULP
"""Beyond the two units that rounding explains, within the one nat that makes a bug."""


class Grouping(Target):
    """Swaps the two best where scoring starts `start` tokens before the place."""

    def __init__(self, start: int | None, gap: float = SUSPECT) -> None:
        super().__init__(margins={len(PROMPT) + AT: gap})
        self.start = start

    async def score(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling
    ) -> list[Position]:
        found = await super().score(token_ids, score_from, rows, sampling)
        last = len(token_ids) - 1
        if last == len(PROMPT) + AT and last - score_from == self.start:
            first, second, *others = found[-1].top_ids
            swapped = dataclasses.replace(found[-1], top_ids=(second, first, *others))
            found[-1] = dataclasses.replace(swapped, token_score=swapped.top_scores[0])
        return found


def arm(target: Target) -> tuple[Output, Output]:
    base = target.greedy(PROMPT, LENGTH)
    other = target.ranked((*PROMPT, *base[:AT]))[1]
    return output(PROMPT, base), output(PROMPT, target.follow(PROMPT, (*base[:AT], other), LENGTH))


def grade(target: Target) -> OutputGrade:
    base, other = arm(target)
    return asyncio.run(grade_output(base, other, target, "bfloat16", None))


@pytest.mark.parametrize("start", [0, 1, 8])
def test_a_token_that_the_target_chooses_is_a_near_tie(start: int) -> None:
    target = Grouping(start)
    found = grade(target)
    assert (found.verdict, found.near_ties) == ("near-tie", 1)
    assert [f.reproduced for f in found.findings] == [True]
    cell = asyncio.run(grade_cell([arm(target)], target, "bfloat16"))
    assert (cell.grade, cell.near_ties, cell.suspects, cell.reproduced) == ("near-ties", 1, 0, 1)


def check_never_chosen() -> None:
    found = grade(Grouping(None))
    assert (found.verdict, found.findings[0].reproduced) == ("suspect", False)


def test_a_token_that_the_target_never_chooses_stays_a_suspect() -> None:
    check_never_chosen()


def check_bugs_stay() -> None:
    found = grade(Grouping(1, gap=3.0))
    assert (found.verdict, found.findings[0].reproduced) == ("bug", False)


def test_a_bug_is_not_asked_again() -> None:
    check_bugs_stay()


def test_near_ties_by_themselves_are_not_asked_again() -> None:
    target = Grouping(1, gap=ULP)
    found = grade(target)
    assert (found.verdict, found.findings[0].reproduced) == ("near-tie", False)
    assert [start for start, _ in target.calls] == [len(PROMPT)]


def test_places_before_the_output_are_not_scored() -> None:
    target = Grouping(None)
    grade(target)
    starts = [start for start, _ in target.calls[1:]]
    assert min(starts) >= len(PROMPT)
    assert len(set(target.calls[1:])) == len(target.calls[1:]) > 8


def check_penalties() -> None:
    """What a penalty counts depends on where the output begins."""
    base, other = arm(Grouping(1))
    penalised = dataclasses.replace(other, sampling=Sampling(presence_penalty=0.5))
    found = asyncio.run(
        grade_output(
            dataclasses.replace(base, sampling=penalised.sampling),
            penalised,
            Grouping(1),
            "bfloat16",
            None,
        )
    )
    assert found.verdict == "suspect"


def test_penalised_suspects_stay() -> None:
    check_penalties()


def test_the_baseline_s_own_output_is_asked_again_too() -> None:
    target = Grouping(2)
    found = asyncio.run(grade_baseline_output(arm(target)[1], target, "bfloat16", None))
    assert (found.verdict, found.findings[0].reproduced) == ("near-tie", True)


MODULE = "ddtree.verify.reproduce"
MUTATIONS = (
    Mutation(
        "any token is taken for the target's",
        MODULE,
        (
            (
                "positions[-1].choice.token_id == finding.token_id",
                "positions[-1].choice.token_id >= 0",
            ),
        ),
        (check_never_chosen,),
    ),
    Mutation(
        "bugs are asked again",
        MODULE,
        (('finding.verdict == "suspect"', 'finding.verdict != "near-tie"'),),
        (check_bugs_stay,),
    ),
    Mutation(
        "penalties don't matter",
        MODULE,
        (("or sampling.presence_penalty != 0", ""),),
        (check_penalties,),
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_planted_bugs_are_caught(mutation: Mutation) -> None:
    assert_caught(mutation)
