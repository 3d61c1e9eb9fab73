"""The drafter's ring of committed tokens, against a simulation that writes one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.core_checks import check_ring, check_window

WINDOW, BLOCK = 12, 5
BOUNDARIES = (
    *(0, 1, WINDOW - BLOCK, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + BLOCK),
    *(2 * WINDOW - 1, 2 * WINDOW, 2 * WINDOW + 1),
)
KINDS = pytest.mark.parametrize(
    "how", [(kind, causal) for kind in ("anchored", "per-query") for causal in (False, True)]
)


@KINDS
@pytest.mark.parametrize("ring", [WINDOW, WINDOW + 3, 4 * WINDOW])
def test_window_at_its_boundaries(ring, how):
    check_window(BOUNDARIES, [WINDOW] * len(BOUNDARIES), (ring, BLOCK), how)


@KINDS
@given(data=st.data())
def test_windows_of_a_ragged_batch(how, data):
    block = data.draw(st.integers(1, 6))
    pairs = st.tuples(st.integers(0, 60), st.integers(block, 30))
    lengths, windows = zip(*data.draw(st.lists(pairs, min_size=1, max_size=4)), strict=True)
    ring = max(windows) + data.draw(st.integers(0, 5))
    check_window(lengths, windows, (ring, block), how)


@given(st.lists(st.integers(0, 80), min_size=1, max_size=4), st.integers(1, 20))
def test_ring_holds_the_newest_positions(lengths, size):
    check_ring(lengths, size)
