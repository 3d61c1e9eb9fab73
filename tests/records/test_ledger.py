import dataclasses
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.ledger import CellIdentity, Ledger, cell_key
from ddtree.records.summary import Control, Interval, Losslessness

IDENTITY = CellIdentity(
    arm=Arm("ddtree", 8, 4),
    context=60,
    concurrency=1,
    temperature=0,
    max_tokens=48,
    prompts_sha256="p",
    model_sha256="m",
    drafter_sha256="d",
    dtype="bfloat16",
    server_version="0.1.0",
    settings=(("threads", "2"), ("slots", "4")),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(path, "spec-a") as opened:
        yield opened


CHANGES: list[dict[str, object]] = [
    {"arm": Arm("ddtree", 8, 5)},
    {"arm": Arm("ddtree", 8, 4, 256)},
    {"context": 61},
    {"concurrency": 2},
    {"temperature": 0.5},
    {"rate": 2.0},
    {"max_tokens": 49},
    {"prompts_sha256": "q"},
    {"model_sha256": "n"},
    {"drafter_sha256": None},
    {"dtype": "float32"},
    {"server_version": "0.1.1"},
    {"role": "control-with-drafter"},
    {"settings": (("threads", "1"), ("slots", "4"))},
    {"metric_version": 99},
]


def test_every_field_changes_the_key() -> None:
    keys = [cell_key(dataclasses.replace(IDENTITY, **change)) for change in CHANGES]  # type: ignore[arg-type]
    assert len({cell_key(IDENTITY), *keys}) == len(CHANGES) + 1
    changed = {name for change in CHANGES for name in change}
    assert changed == {field.name for field in dataclasses.fields(CellIdentity)}


def test_key_ignores_spelling() -> None:
    same = dataclasses.replace(
        IDENTITY, temperature=0.0, settings=(("slots", "4"), ("threads", "2"))
    )
    assert cell_key(same) == cell_key(IDENTITY)


def test_cells_come_back_in_order_and_once(ledger: Ledger) -> None:
    ar = dataclasses.replace(IDENTITY, arm=Arm("ar"))
    keys = [ledger.add_cell(IDENTITY), ledger.add_cell(ar)]
    assert ledger.add_cell(IDENTITY) == keys[0]
    ledger.set_cell_state(keys[0], "invalid", "noise")
    rows = ledger.cells()
    assert [row.key for row in rows] == keys
    assert rows[0].arm == IDENTITY.arm
    assert (rows[0].state, rows[0].reason) == ("invalid", "noise")
    assert (rows[1].state, rows[1].reason, rows[1].role) == ("planned", None, "arm")


def test_adding_a_cell_again_keeps_its_state(ledger: Ledger) -> None:
    key = ledger.add_cell(IDENTITY)
    ledger.set_cell_state(key, "ok")
    ledger.add_cell(IDENTITY)
    assert ledger.cells()[0].state == "ok"


def test_unknown_cells_are_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="add_cell"):
        ledger.set_cell_state("nothing", "ok")
    with pytest.raises(sqlite3.IntegrityError):
        ledger.start_block("nothing", 0)


def test_block_life(ledger: Ledger) -> None:
    key = ledger.add_cell(IDENTITY)
    assert ledger.last_attempt(key, 0) is None
    assert ledger.start_block(key, 0) == 0
    ledger.finish_block(key, 0, "invalid", "other processes took 12 % CPU", {"cpu_share": 0.12})
    assert ledger.start_block(key, 0) == 1
    ledger.finish_block(key, 0, "ok", extra={"cpu_share": 0.01})
    first, second = ledger.blocks(key)
    assert (first.attempt, first.state, first.reason) == (
        0,
        "invalid",
        "other processes took 12 % CPU",
    )
    assert (second.attempt, second.state, second.extra) == (1, "ok", {"cpu_share": 0.01})
    assert second.started is not None
    assert second.ended is not None
    assert second.ended >= second.started


def test_an_ok_block_is_never_started_again_but_can_become_invalid(ledger: Ledger) -> None:
    key = ledger.add_cell(IDENTITY)
    ledger.start_block(key, 3)
    with pytest.raises(ConfigError, match="running"):
        ledger.start_block(key, 3)
    ledger.finish_block(key, 3, "ok", extra={"a": 1})
    with pytest.raises(ConfigError, match="is ok"):
        ledger.start_block(key, 3)
    ledger.finish_block(key, 3, "invalid", "ar was slow", {"b": 2})
    row = ledger.last_attempt(key, 3)
    assert row is not None
    assert (row.state, row.extra) == ("invalid", {"a": 1, "b": 2})
    with pytest.raises(ConfigError, match="can't be ok"):
        ledger.finish_block(key, 3, "ok")
    with pytest.raises(ConfigError, match="not there"):
        ledger.finish_block(key, 4, "ok")


def test_grades_and_controls_come_back(ledger: Ledger) -> None:
    key = ledger.add_cell(IDENTITY)
    grade = Losslessness("near-ties", 10, 9, near_ties=1, largest_gap_ulps=1.0)
    ledger.set_grade(key, Losslessness("unclassified", 10, 9))
    ledger.set_grade(key, grade)
    assert ledger.grades() == {key: grade}
    controls = (
        Control(60, 1, 0.99, Interval(0.97, 1.01), 12),
        Control(1024, 4, 1.0, None, 8),
    )
    for control in reversed(controls):
        ledger.set_control(control)
    assert ledger.controls() == controls


def test_everything_is_there_after_reopening(path: Path) -> None:
    with Ledger.open(path, "spec-a") as ledger:
        key = ledger.add_cell(IDENTITY)
        ledger.start_block(key, 0)
        ledger.finish_block(key, 0, "ok")
        before = ledger.blocks(), ledger.cells(), ledger.created
    with Ledger.open(path, "spec-a") as ledger:
        assert (ledger.blocks(), ledger.cells(), ledger.created) == before


def test_a_crashed_block_is_planned_again_under_a_new_attempt(path: Path) -> None:
    with Ledger.open(path, "spec-a") as ledger:
        key = ledger.add_cell(IDENTITY)
        ledger.set_cell_state(key, "running")
        ledger.start_block(key, 0)
        ledger.finish_block(key, 0, "ok")
        ledger.start_block(key, 1)
    with Ledger.open(path, "spec-a") as ledger:
        done, crashed = ledger.blocks(key)
        assert done.state == "ok"
        assert (crashed.state, crashed.attempt, crashed.started) == ("planned", 1, None)
        assert crashed.extra == {"crashes": 1}
        assert ledger.cells()[0].state == "planned"
        assert ledger.start_block(key, 1) == 1
        row = ledger.last_attempt(key, 1)
        assert row is not None
        assert row.extra == {"crashes": 1}


def test_reading_does_not_touch_a_running_block(path: Path, ledger: Ledger) -> None:
    key = ledger.add_cell(IDENTITY)
    ledger.start_block(key, 0)
    with Ledger.read(path) as reader:
        assert [row.state for row in reader.blocks()] == ["running"]
        assert reader.spec_hash == "spec-a"
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.set_cell_state(key, "ok")


def test_the_newest_start_s_cells_come_last(path: Path) -> None:
    other = dataclasses.replace(IDENTITY, server_version="other")
    orders = []
    for used in (IDENTITY, other, IDENTITY):
        with Ledger.open(path, "spec-a") as ledger:
            key = ledger.add_cell(used)
            orders.append([row.key for row in ledger.cells()])
            assert orders[-1][-1] == key
    assert orders[2] == orders[1][::-1]


def test_a_snapshot_is_of_one_moment(path: Path) -> None:
    with Ledger.open(path, "spec-a") as writer:
        key = writer.add_cell(IDENTITY)
        with Ledger.read(path) as reader:
            with reader.snapshot():
                assert reader.blocks(key) == ()
                writer.start_block(key, 0)
                assert reader.blocks(key) == ()
            assert len(reader.blocks(key)) == 1


def test_one_writer(path: Path, ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="another run is writing"):
        Ledger.open(path, "spec-a")
    ledger.close()
    Ledger.open(path, "spec-a").close()


def test_another_spec_is_refused_and_lets_go(path: Path) -> None:
    Ledger.open(path, "spec-a").close()
    with pytest.raises(ConfigError, match=r"spec-a.*spec-b"):
        Ledger.open(path, "spec-b")
    Ledger.open(path, "spec-a").close()


@pytest.mark.parametrize("version", [0, 1, 2, 4])
def test_unknown_schema_is_refused(path: Path, version: int) -> None:
    Ledger.open(path, "spec-a").close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    for attempt in (lambda: Ledger.open(path, "spec-a"), lambda: Ledger.read(path)):
        with pytest.raises(ConfigError, match=f"schema {version}, this version reads 3"):
            attempt()


def test_what_is_not_a_ledger_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Ledger.read(path)
    path.write_text("not a database, and long enough to be looked at\n" * 50)
    for attempt in (lambda: Ledger.open(path, "spec-a"), lambda: Ledger.read(path)):
        with pytest.raises(ConfigError, match="not a ledger"):
            attempt()


KILLED = """
import dataclasses, os, signal, sys
from pathlib import Path
from ddtree.records.arms import Arm
from ddtree.records.ledger import CellIdentity, Ledger
ledger = Ledger.open(Path(sys.argv[1]), "spec-a")
key = ledger.add_cell(
    CellIdentity(Arm("ar"), 60, 1, 0.0, 48, "p", "m", None, "bfloat16", "0.1.0")
)
for index in range(3):
    ledger.start_block(key, index)
    if index == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    ledger.finish_block(key, index, "ok")
"""


def test_kill_9_keeps_what_was_finished(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert done.returncode == -9
    with Ledger.open(path, "spec-a") as ledger:
        assert [(row.index, row.attempt, row.state) for row in ledger.blocks()] == [
            (0, 0, "ok"),
            (1, 0, "ok"),
            (2, 1, "planned"),
        ]
