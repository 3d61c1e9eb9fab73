"""Where faults lie says what caused them: counts of faulty tokens by place, and a likely cause.

A place is what the token was in its round: the prompt's first token, an accepted draft token at
some depth, or the bonus after the path. A hint, not a proof.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ddtree.verify.classify import EXPLAINED
from ddtree.verify.grade import OutputGrade
from ddtree.verify.outputs import Output

Kind = Literal["first", "draft", "bonus"]

_MOST = 0.9
_EVERYWHERE = "everywhere: the target, its sampling or its seed is not what was asked for"
# Below this many faulty tokens nothing can be said of where they lie.
_FEW = 3


@dataclass(frozen=True)
class Place:
    """`depth` of the token below its round's root; `beside`: it, or a token of its path, was not
    its depth's first candidate. `after_reject`: an earlier round took another path than the best
    or stopped short."""

    kind: Kind
    depth: int
    beside: bool
    after_reject: bool


@dataclass(frozen=True)
class Signature:
    """Faulty tokens by kind and depth, as shares of all tokens there, and what they suggest."""

    faults: int
    by_place: dict[str, str]
    hint: str


def places(ranks: Sequence[Sequence[int]], count: int) -> list[Place]:
    """The place of each of an output's first `count` tokens, of the ranks its rounds accepted."""
    found, rejected = [Place("first", 0, beside=False, after_reject=False)], False
    for path in ranks:
        for depth in range(1, len(path) + 1):
            found.append(Place("draft", depth, any(path[:depth]), rejected))
        found.append(Place("bonus", len(path) + 1, any(path), rejected))
        rejected = True
    return found[:count]


def signature(graded: Sequence[tuple[Output, OutputGrade]]) -> Signature | None:
    """Of one arm's outputs with their grades; None where no token is at fault."""
    faulty: list[Place | None] = []
    total: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    filtered = 0
    for output, grade in graded:
        where = _places(output)
        total.update(_name(place) for place in where if place is not None)
        for finding in grade.findings:
            if finding.verdict in EXPLAINED or finding.of_baseline:
                continue
            place = where[finding.index] if finding.index < len(where) else None
            faulty.append(place)
            filtered += finding.filtered
            if place is not None:
                bad[_name(place)] += 1
    if not faulty:
        return None
    shares = {name: f"{bad[name]}/{total[name]}" for name in total if bad[name]}
    known = [place for place in faulty if place is not None]
    return Signature(len(faulty), shares, _hint(known, len(faulty), filtered))


def _places(output: Output) -> Sequence[Place | None]:
    if output.ranks is None:
        return [None] * len(output.token_ids)
    return places(output.ranks, len(output.token_ids))


def _name(place: Place) -> str:
    return place.kind if place.kind == "first" else f"{place.kind} at depth {place.depth}"


def _hint(found: Sequence[Place], faults: int, filtered: int) -> str:
    """The first cause that fits."""
    if filtered > faults / 2:
        return "tokens that a sampling filter removes: top_k, top_p or min_p is not applied"
    if len(found) < _FEW:
        return "too few faulty tokens to say where they come from"
    if any(place.kind == "first" for place in found):
        return _EVERYWHERE
    if _share(place.kind == "draft" for place in found) >= _MOST:
        if _share(place.depth == 1 for place in found) >= _MOST:
            return "first draft tokens: accepted without being verified"
        return "accepted draft tokens: accepted without the target's own choice"
    if _share(place.beside for place in found) >= _MOST:
        return "only paths beside the best one: the mask shows siblings, or positions are wrong"
    if _share(place.depth > 1 for place in found) >= _MOST:
        return "only below the root's row: ancestor mask, positions, or edits of another row's path"
    if _share(place.after_reject for place in found) >= _MOST:
        return "only after a round that rejected: its keys are still seen, or the wrong ones stay"
    return _EVERYWHERE


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values)
