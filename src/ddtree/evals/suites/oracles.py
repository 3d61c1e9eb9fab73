"""EvalPlus' tasks with more than one right answer: what counts as right, as Python source.

The reference runs beside the answer, in a namespace of its own, and a rule compares the two. Rules
are those of EvalPlus 0.3.1, but for two that would let references fail or wrong answers pass:
`find_zero` asks for a zero as near as the reference's where the reference itself misses the
tolerance, `are_equivalent`, of which EvalPlus accepts any answer, must return a bool.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ddtree.evals.tasks import AssertTests

_SAME_SET = "return set(got) == set(expected)"

# A match object stands for yes.
_SAME_PRESENCE = """\
present = expected is not None
return got == present if isinstance(got, bool) else (got is not None) == present
"""

_NEAR_ZERO = """\
def distance(root):
    return abs(sum(c * math.pow(root, i) for i, c in enumerate(arguments[0])))
return distance(got) <= max(atol, distance(expected))
"""

# The height may be read as the pyramid's or as that of its side.
_SURFACE = """\
edge, height = arguments
slant = math.sqrt((edge / 2) ** 2 + height ** 2)
return got == expected or abs(got - round(edge ** 2 + 2 * edge * slant)) <= atol
"""

# Digits may be compared from either end.
_DIGITS = """\
first, second = map(str, arguments)
width = max(len(first), len(second))
pairs = zip(first.zfill(width), second.zfill(width))
return got == expected or got == sum(abs(int(a) - int(b)) for a, b in pairs)
"""

_HUMANEVAL_RULES: Mapping[str, str] = {"find_zero": _NEAR_ZERO}

_MBPP_RULES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "similar_elements",
            "find_char_long",
            "common_in_nested_lists",
            "extract_singly",
            "larg_nnum",
            "intersection_array",
            "find_dissimilar",
            "Diff",
        ),
        _SAME_SET,
    ),
    **dict.fromkeys(("check_str", "text_match_three", "text_starta_endb"), _SAME_PRESENCE),
    "are_equivalent": "return isinstance(got, bool)",
    "sum_div": "return got == expected or got == 0",
    "surface_Area": _SURFACE,
    "digit_distance_nums": _DIGITS,
}

_TEMPLATE = """\
def _check_all():
    import copy
    import math

    nan, inf = float("nan"), float("inf")
    atol = {atol!r}
    scope = {{"__name__": "reference"}}
    exec({reference!r}, scope)
    reference = scope[{entry_point!r}]

    def is_right(got, expected, arguments):
{rule}

    for arguments in {inputs!r}:
        expected = reference(*copy.deepcopy(arguments))
        got = {entry_point}(*copy.deepcopy(arguments))
        try:
            right = is_right(got, expected, arguments)
        except (TypeError, ValueError, OverflowError):
            right = False
        assert right, "not a right result"


_check_all()
"""


def humaneval_rule(entry_point: str) -> str | None:
    """The rule of a HumanEval+ task, None where results are compared with the reference's."""
    return _HUMANEVAL_RULES.get(entry_point)


def mbpp_rule(entry_point: str) -> str | None:
    """The rule of an MBPP+ task, None where results are compared with the reference's."""
    return _MBPP_RULES.get(entry_point)


def oracle_tests(
    rule: str, entry_point: str, reference: str, inputs: Sequence[tuple[Any, ...]], atol: float
) -> AssertTests:
    """Tests that hold the entry point against the reference by a rule.

    `rule` is the body of a function of `got`, `expected` and `arguments` that returns whether the
    result is right; it may use `math` and `atol`.
    """
    return AssertTests(
        _TEMPLATE.format(
            atol=float(atol),
            reference=reference,
            entry_point=entry_point,
            rule=textwrap.indent(rule.rstrip("\n"), " " * 8),
            inputs=list(inputs),
        )
    )
