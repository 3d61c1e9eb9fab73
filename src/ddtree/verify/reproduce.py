"""Can rounding alone give a suspect's token? The target is asked once more, without any drafter.

A control of some thousand positions can't bound the tails of tens of thousands of tokens, and a
rule of ranks and gaps takes a tie of three for a fault. But arithmetic that chooses a token once
shows it can: a suspect's prefix is scored again with its last rows computed in other groupings,
which reorders the sums of its own keys and values too. A token that the target then chooses is
explained. One that a fault put there is not among its choices, however often it is asked.
"""

import dataclasses
from collections.abc import Sequence

from ddtree.records.sampling import Sampling
from ddtree.verify.classify import Finding
from ddtree.verify.outputs import Output
from ddtree.verify.scoring import Scorer

_ROWS = (1, 4)
# How many tokens before the position are computed as rows like it, not with the prompt.
_STARTS = (0, 1, 2, 3, 5, 8, 13, 16)


async def reproduce(findings: Sequence[Finding], arm: Output, scorer: Scorer) -> list[Finding]:
    """The findings, suspects turned into near-ties where the target alone chooses their token."""
    return [
        dataclasses.replace(finding, verdict="near-tie", reproduced=True)
        if finding.verdict == "suspect" and await _is_chosen(finding, arm, scorer)
        else finding
        for finding in findings
    ]


def _counts_output(sampling: Sampling) -> bool:
    """Whether a choice depends on where the prompt ends: scoring from elsewhere moves that."""
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.min_tokens > 0
    )


async def _is_chosen(finding: Finding, arm: Output, scorer: Scorer) -> bool:
    if _counts_output(arm.sampling):
        return False
    text = arm.prompt + arm.token_ids[: finding.index] + (finding.token_id,)
    for start in (start for start in _STARTS if start <= finding.index):
        for rows in _ROWS:
            positions = await scorer.score(text, len(text) - 1 - start, rows, arm.sampling)
            if positions[-1].has_scores and positions[-1].choice.token_id == finding.token_id:
                return True
    return False
