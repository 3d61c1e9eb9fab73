"""What a server may be asked for, and what is refused by name."""

import dataclasses
from typing import Any

import pytest

from ddtree.errors import ConfigError
from ddtree.sglang_plugin.settings import (
    PATH_DEPENDENT,
    Flags,
    Resolved,
    Wishes,
    path_problem,
    read_wishes,
    require_supported,
    resolve,
    row_headroom,
)

GOOD = Flags("drafter", {"triton"}, 1, 1, False, False, (1.0, 1.0), False)


def test_wishes_have_defaults_and_names() -> None:
    assert read_wishes({"PATH": "/bin", "DDTREE_LAUNCH": "abc"}) == Wishes(4, False)
    assert read_wishes({"DDTREE_TOPK": "8", "DDTREE_RANKS": "1"}) == Wishes(8, True)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"DDTREE_TOPK": "0"}, "DDTREE_TOPK: got '0', expected an integer of at least 1"),
        ({"DDTREE_TOPK": "many"}, "DDTREE_TOPK: got 'many'"),
        ({"DDTREE_TOPK": ""}, "DDTREE_TOPK: got ''"),
        ({"DDTREE_RANKS": "yes"}, "DDTREE_RANKS: got 'yes', expected 0 or 1"),
        ({"DDTREE_TOPKS": "4"}, "DDTREE_TOPKS: unknown; known are DDTREE_RANKS, DDTREE_TOPK"),
    ],
)
def test_a_wish_that_cannot_be_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_wishes(environment)


@pytest.mark.parametrize(
    ("rows", "block", "window", "expected"),
    [
        (None, 8, None, (17, 8, 17)),
        (5, 8, 1024, (5, 5, 8)),
        (65, 8, 8, (65, 8, 65)),
        (2, 2, None, (2, 2, 2)),
    ],
)
def test_the_shape_follows_the_flags(
    rows: int | None, block: int, window: int | None, expected: tuple[int, int, int]
) -> None:
    resolved = resolve(rows, block, window, Wishes(4, False))
    shape = resolved.shape
    assert (shape.rows, shape.steps, shape.span) == expected
    assert Resolved.from_json(resolved.as_json()) == resolved


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 8, None), "--speculative-num-draft-tokens: got 1, expected at least 2"),
        ((9, 1, None), "--speculative-dflash-block-size: got 1, expected at least 2"),
        ((9, 8, 7), "--speculative-draft-window-size: got 7, expected at least .* 8"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(*arguments, Wishes(4, False))


def test_good_flags_pass() -> None:
    require_supported(GOOD)
    require_supported(dataclasses.replace(GOOD, page_size=None, backends={"ddtree_torch"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafter": None}, "--speculative-draft-model-path: missing"),
        ({"backends": {"fa3", "triton"}}, "--attention-backend: got fa3, expected triton"),
        ({"page_size": 16}, "--page-size: got 16, expected 1"),
        ({"pp_size": 2}, "--pp-size: got 2, expected 1"),
        ({"dp_attention": True}, "--enable-dp-attention"),
        ({"logit_processors": True}, "--enable-custom-logit-processor"),
        ({"thresholds": (0.9, 1.0)}, "--speculative-accept-threshold-single"),
        ({"thresholds": (1.0, 0.9)}, "--speculative-accept-threshold-single"),
        ({"adaptive": True}, "--speculative-adaptive"),
    ],
)
def test_a_flag_that_trees_cannot_follow_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_supported(dataclasses.replace(GOOD, **changes))


def test_a_row_holds_what_is_reserved() -> None:
    """Committed tokens never exceed the context; two rounds are reserved beyond them."""
    assert row_headroom(21, 17) == 38
    assert row_headroom(50, 17) == 50


def test_penalties_are_refused_by_name() -> None:
    assert path_problem(PATH_DEPENDENT) is None
    for name, neutral in PATH_DEPENDENT.items():
        problem = path_problem({**PATH_DEPENDENT, name: neutral + 0.5})
        assert problem is not None
        assert f"DDTREE: {name}: got" in problem
