"""`ddtree serve`'s --method, --budget, --topk and --schedule."""

import json

import pytest

from ddtree.cli.default_speculation import default_speculation
from ddtree.engine import Speculation
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.schedule import Schedule, ScheduleEntry


def test_nothing_named_leaves_the_engines_own():
    found = default_speculation(None, None, None, None)
    assert (found.schedule, found.fixed) == (None, None)
    assert found.choose(10, 1, 0.0) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("ar", None, None), Speculation("ar")),
        (("chain", None, None), Speculation("chain")),
        (("ddtree", 16, 8), Speculation("ddtree", 16, 8)),
        ((None, 16, None), Speculation("ddtree", 16)),
        ((None, None, 2), Speculation("ddtree", None, 2)),
    ],
)
def test_options_are_a_default_for_all_requests(given, expected):
    found = default_speculation(*given, None)
    assert found.choose(10, 1, 0.0) == found.choose(9999, 64, 0.8) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("tree", None, None), "--method: got 'tree'"),
        (("ar", 8, None), "--budget: belongs to ddtree"),
        (("chain", None, 4), "--topk: belongs to ddtree"),
    ],
)
def test_options_that_contradict_each_other_are_named(given, said):
    with pytest.raises(ConfigError, match=said):
        default_speculation(*given, None)


def test_a_schedule_is_read(tmp_path):
    path = tmp_path / "s.json"
    schedule = Schedule("m", (ScheduleEntry(60, 1, 0.0, Arm("ddtree", 8, 4)),))
    path.write_text(schedule.to_json())
    found = default_speculation(None, None, None, path)
    assert found.schedule == schedule
    assert found.choose(60, 1, 0.0) == Speculation("ddtree", 8, 4)
    assert found.choose(60, 1, 0.5) == Speculation("ar")


@pytest.mark.parametrize("given", [("ar", None, None), (None, 8, None), (None, None, 4)], ids=str)
def test_a_schedule_and_a_default_exclude_each_other(tmp_path, given):
    with pytest.raises(ConfigError, match="--schedule chooses this by request"):
        default_speculation(*given, tmp_path / "s.json")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"s\.json: can't be read"):
        default_speculation(None, None, None, tmp_path / "s.json")
    (tmp_path / "s.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"s\.json: can't be read"):
        default_speculation(None, None, None, tmp_path / "s.json")
    (tmp_path / "s.json").write_text(json.dumps({"schema_version": 9}))
    with pytest.raises(ConfigError, match="schema_version 9"):
        default_speculation(None, None, None, tmp_path / "s.json")
