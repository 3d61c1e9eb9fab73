import pytest

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm, Window, window_size


@pytest.mark.parametrize("window", [1, 256, "full"])
def test_a_baseline_has_no_draft_window(window: Window) -> None:
    with pytest.raises(ConfigError, match="ar drafts nothing"):
        Arm("ar", draft_window=window)
    assert Arm("chain", draft_window=window).draft_window == window


def test_windows_sort_from_the_checkpoints_own_to_full() -> None:
    windows: list[Window] = ["full", 1024, None, 64]
    assert sorted(windows, key=window_size) == [None, 64, 1024, "full"]
