"""kill -9 of the client, of the server and of both: nothing that was finished is lost."""

import importlib
from pathlib import Path

import pytest
from kill_bench import KINDS, Killer, Outcome, undisturbed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    found = undisturbed(tmp_path_factory.mktemp("whole"))
    assert len(found.cells) == len(found.keys) == 40
    assert len(found.outputs) == 80
    return found


def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path: Path, whole: Outcome) -> None:
    killer = Killer(tmp_path, seed=1)
    assert killer.run(KINDS) == whole
    assert len(killer.done) >= len(KINDS)
    assert set(killer.done) == set(KINDS)


def test_a_lost_line_is_seen(tmp_path: Path) -> None:
    """The check itself: a log that was cut between two looks fails."""
    killer = Killer(tmp_path, seed=1)

    class Losing:
        def poll(self) -> None:
            # Asked before the kill; the log is cut as a client that rewrites it would.
            (tmp_path / "requests.jsonl").write_bytes(b"1\n" * 40)

        def kill(self) -> None:
            (tmp_path / "requests.jsonl").write_bytes(b"1\n" * 3)

        def wait(self) -> None: ...

    with pytest.raises(AssertionError, match="a finished request is lost"):
        killer._kill(Losing(), "client")  # type: ignore[arg-type]


def test_the_script_finds_fault_with_another_outcome(
    whole: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    script = importlib.import_module("kill_runs")
    for found, fault in (
        (whole, False),
        (Outcome(whole.cells[1:], whole.keys, whole.outputs), True),
    ):
        monkeypatch.setattr(script.Killer, "run", lambda self, kinds, found=found: found)
        assert (script.one(0, 3, whole)["fault"] is not None) is fault


def test_outcomes_tell_runs_apart(whole: Outcome) -> None:
    some = next(iter(whole.outputs))
    other = Outcome(whole.cells, whole.keys, whole.outputs - {some})
    assert other != whole
    assert Outcome(whole.cells[1:], whole.keys, whole.outputs) != whole
