"""Where faults lie says what caused them: counts of faulty tokens by place, and a likely cause.

A place is what the token was in its round: the prompt's first token, an accepted draft token at
some depth, or the bonus after the path. A hint, not a proof.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ddtree.verify.classify import EXPLAINED
from ddtree.verify.grade import OutputGrade
from ddtree.verify.outputs import Output

Kind = Literal["first", "draft", "bonus"]

_MOST = 0.9
_EVERYWHERE = "everywhere: the target, its sampling or its seed is not what was asked for"
_KEYS = "rejected keys are still seen, or those that were kept saw siblings or have wrong positions"
# The first token has no round before it.
_LATER = f"{_EVERYWHERE}; or, since no first token is at fault, {_KEYS}"
_REMOVED = (
    "tokens that a filter or a ban removes: top_k, top_p, min_p, bad_words or min_tokens is not "
    "applied, or not with the row's own path"
)
# Below this many faulty tokens nothing can be said of where they lie.
_FEW = 3


@dataclass(frozen=True)
class Place:
    """`depth` of the token below its round's root; `beside`: it, or a token of its path, was not
    its depth's first candidate. `after_reject`: an earlier round's drafts weren't all accepted,
    which every round of a speculating request is taken for."""

    kind: Kind
    depth: int
    beside: bool
    after_reject: bool


_CAUSES: tuple[tuple[str, Callable[[Place], bool]], ...] = (
    (
        "first draft tokens: accepted without being verified",
        lambda place: place.kind == "draft" and place.depth == 1,
    ),
    (
        "accepted draft tokens: accepted without the target's own choice",
        lambda place: place.kind == "draft",
    ),
    (
        "only paths beside the best one: the mask shows siblings, or positions are wrong",
        lambda place: place.beside,
    ),
    (
        "only below the root's row: ancestor mask, positions, or edits of another row's path",
        lambda place: place.depth > 1,
    ),
    (
        f"only after a round that rejected: {_KEYS}",
        lambda place: place.after_reject,
    ),
)


@dataclass(frozen=True)
class Signature:
    """Faulty tokens by kind and depth, as shares of all tokens there, and what they suggest."""

    faults: int
    by_place: dict[str, str]
    hint: str


def places(ranks: Sequence[Sequence[int]], count: int) -> list[Place]:
    """The place of each of an output's first `count` tokens, of the ranks its rounds accepted."""
    found, rejected = [Place("first", 0, beside=False, after_reject=False)], False
    speculates = any(ranks)
    for path in ranks:
        for depth in range(1, len(path) + 1):
            found.append(Place("draft", depth, any(path[:depth]), rejected))
        found.append(Place("bonus", len(path) + 1, any(path), rejected))
        rejected = speculates
    return found[:count]


@dataclass(frozen=True)
class LocatedFinding:
    """A token that is not the reference's choice, at `index` of the `output`-th request."""

    output: int
    seed: int | None
    index: int
    token_id: int
    reference_id: int
    gap_ulps: float
    verdict: str
    of_baseline: bool
    place: str | None

    def __str__(self) -> str:
        """One line for people."""
        seed = "" if self.seed is None else f" (seed {self.seed})"
        place = "" if self.place is None else f", {self.place}"
        return (
            f"output {self.output}{seed}, token {self.index}{place}: {self.token_id} where the "
            f"target has {self.reference_id}, {self.gap_ulps:.3g} bf16 ULP apart"
        )


def locate(outputs: Sequence[Output], grades: Sequence[OutputGrade]) -> tuple[LocatedFinding, ...]:
    """Every finding with the place of its token."""
    found = []
    for number, (output, grade) in enumerate(zip(outputs, grades, strict=True)):
        where = _places(output)
        for finding in grade.findings:
            place = where[finding.index] if finding.index < len(where) else None
            found.append(
                LocatedFinding(
                    number,
                    output.sampling.seed,
                    finding.index,
                    finding.token_id,
                    finding.reference_id,
                    finding.gap_ulps,
                    finding.verdict,
                    finding.of_baseline,
                    None if place is None or finding.of_baseline else _name(place),
                )
            )
    return tuple(found)


def signature(graded: Sequence[tuple[Output, OutputGrade]]) -> Signature | None:
    """Of one arm's outputs with their grades; None where no token is at fault."""
    everywhere: list[Place] = []
    faulty: list[Place] = []
    faults = filtered = 0
    for output, grade in graded:
        where = _places(output)
        everywhere += [place for place in where if place is not None]
        for finding in grade.findings:
            if finding.verdict in EXPLAINED or finding.of_baseline:
                continue
            faults += 1
            filtered += finding.filtered
            place = where[finding.index] if finding.index < len(where) else None
            if place is not None:
                faulty.append(place)
    if not faults:
        return None
    total, bad = Counter(map(_name, everywhere)), Counter(map(_name, faulty))
    shares = {name: f"{bad[name]}/{total[name]}" for name in total if bad[name]}
    if filtered > faults / 2:
        return Signature(faults, shares, _REMOVED)
    return Signature(faults, shares, _hint(faulty, everywhere))


def _places(output: Output) -> Sequence[Place | None]:
    if output.ranks is None:
        return [None] * len(output.token_ids)
    return places(output.ranks, len(output.token_ids))


def _name(place: Place) -> str:
    return place.kind if place.kind == "first" else f"{place.kind} at depth {place.depth}"


def _hint(faulty: Sequence[Place], everywhere: Sequence[Place]) -> str:
    """The first cause that fits: nearly all faults are of its kind, and so many would not be if
    faults fell anywhere."""
    if len(faulty) < _FEW:
        return "too few faulty tokens to say where they come from"
    if any(place.kind == "first" for place in faulty):
        return _EVERYWHERE
    for cause, belongs in _CAUSES:
        inside = sum(map(belongs, faulty)) / len(faulty)
        usual = sum(map(belongs, everywhere)) / len(everywhere)
        if inside >= _MOST and len(faulty) * (1 - usual) >= _FEW:
            return cause
    return _LATER if any(place.kind == "draft" for place in everywhere) else _EVERYWHERE
