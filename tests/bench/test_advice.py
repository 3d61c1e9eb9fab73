"""What somebody who deploys is told: the choice, what comes close, command lines, the schedule."""

import dataclasses
import json
import shlex
from typing import Any

import pytest
from summaries import AR, CHAIN, cell, tree

from ddtree.bench.advice import Advice, advice_dict, advice_text, advise, schedule_of
from ddtree.bench.recommend import recommend
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.schedule import parse_schedule
from ddtree.records.summary import CellSummary, RunSummary

SERVER = {"model": "mine", "target": "/m/target", "drafter": "/m/drafter", "block_size": 8}


def summary(*cells: CellSummary, server: dict[str, Any] | None = None, **more: Any) -> RunSummary:
    return RunSummary(
        title="t",
        created="now",
        model="./models/mine",
        dtype="bfloat16",
        verdict=recommend(cells),
        cells=cells,
        controls=(),
        spec={"drafter": None},
        provenance={} if server is None else {"server": server},
        **more,
    )


def only(*cells: CellSummary, **more: Any) -> Advice:
    (found,) = advise(summary(cell(AR), *cells, **more))
    return found


def test_the_choice_and_how_sure_it_is() -> None:
    found = only(cell(tree(8), 1.8), cell(CHAIN, 1.5))
    assert (found.arm, found.speedup) == (tree(8), 1.8)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(1.8 * 0.99)
    assert found.reason == "fastest of 2 lossless arms"


def test_the_second_best_is_named_with_what_it_saves() -> None:
    found = only(cell(tree(16), 1.8), cell(tree(8), 1.71), cell(CHAIN, 1.5)).runner_up
    assert found is not None
    assert (found.arm, found.behind) == (tree(8), pytest.approx(0.05))
    assert found.text == "second best ddtree(8,4) at 1.71x, within 5.0%, 8 nodes instead of 16"


def test_a_tie_that_the_smaller_won_names_the_larger() -> None:
    found = only(cell(tree(16), 1.8), cell(tree(8), 1.782)).runner_up
    assert found is not None
    assert found.arm == tree(16)
    assert "1.0% faster, a tie, 16 nodes instead of 8" in found.text


@pytest.mark.parametrize(
    "bad", [{"state": "invalid"}, {"grade": "not-lossless"}, {"grade": "unclassified"}]
)
def test_what_may_not_rank_is_no_second_best_either(bad: dict[str, Any]) -> None:
    found = only(cell(tree(8), 1.8), cell(tree(4), 1.79, **bad), cell(CHAIN, 1.2))
    assert found.runner_up is not None
    assert found.runner_up.arm == CHAIN
    assert only(cell(tree(8), 1.8), cell(tree(4), 1.79, **bad)).runner_up is None
    fast = only(cell(tree(8), 9.0, **bad), cell(CHAIN, 1.2))
    assert (fast.arm, fast.runner_up) == (CHAIN, None)


def test_where_ar_is_chosen_the_reason_names_the_best() -> None:
    found = only(cell(tree(8), 0.9))
    assert (found.arm, found.runner_up) == (AR, None)
    assert "ddtree(8,4) at 0.90x" in found.reason
    assert found.launch["ddtree"].endswith("--method ar")


def options(line: str) -> dict[str, str]:
    words = shlex.split(line)
    first = next(i for i, word in enumerate(words) if word.startswith("--"))
    return dict(zip(words[first::2], words[first + 1 :: 2], strict=True))


def test_our_own_line_starts_a_server_that_decodes_so() -> None:
    arm = Arm("ddtree", 96, 20, 256)
    line = only(cell(arm, 1.8, interval=(1.7, 1.9))).launch["ddtree"]
    assert line.startswith("ddtree serve ")
    given = options(line)
    assert given["--model"] == "./models/mine"
    assert (given["--method"], given["--budget"], given["--topk"]) == ("ddtree", "96", "20")
    assert (given["--max-budget"], given["--max-topk"]) == ("96", "20")
    assert (given["--draft-window"], given["--slots"]) == ("256", "1")


def test_our_own_line_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    import typer
    from typer.testing import CliRunner

    from ddtree.cli import serve as command

    seen: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def stop(*given: Any) -> None:
        seen["default"] = given
        raise Stop

    monkeypatch.setattr(command, "default_speculation", stop)
    app = typer.Typer()
    app.command()(command.serve)
    line = only(cell(tree(8), 1.8)).launch["ddtree"]
    result = CliRunner().invoke(app, shlex.split(line)[2:])
    assert isinstance(result.exception, Stop), result.output
    assert seen["default"] == ("ddtree", 8, 4, None)


def test_sglangs_line_has_files_and_not_our_names() -> None:
    given = options(only(cell(tree(8), 1.8), server=SERVER).launch["sglang"])
    assert given["--model-path"] == "/m/target"
    assert given["--speculative-algorithm"] == "DDTREE"
    assert given["--speculative-draft-model-path"] == "/m/drafter"
    # A row for each node, and one for the root.
    assert given["--speculative-num-draft-tokens"] == "9"
    chain = options(only(cell(CHAIN, 1.8), server=SERVER).launch["sglang"])
    assert chain["--speculative-algorithm"] == "DFLASH"
    assert chain["--speculative-num-draft-tokens"] == "8"


def test_a_line_that_cannot_be_given_says_why() -> None:
    assert only(cell(tree(8), 1.8)).launch["sglang"].startswith("no line: drafter: ddtree(8,4)")


SETTINGS = ((60, 1), (60, 4), (1024, 1))


def several(**more: Any) -> RunSummary:
    cells = [cell(AR, setting=setting) for setting in SETTINGS]
    speeds = zip(SETTINGS, (2.0, 0.9, 1.5), strict=True)
    return summary(*cells, *(cell(tree(8), s, setting) for setting, s in speeds), **more)


def test_the_schedule_holds_every_closed_loop_choice() -> None:
    schedule = schedule_of(several(server=SERVER))
    assert schedule.model == "mine"
    assert [(e.context, e.concurrency, e.arm) for e in schedule.entries] == [
        (60, 1, tree(8)),
        (60, 4, AR),
        (1024, 1, tree(8)),
    ]
    assert schedule.choose(70, 1, 0.0) == tree(8)
    assert schedule.choose(70, 4, 0.0) == AR
    assert parse_schedule(schedule.to_json(), "s") == schedule


def test_an_arrival_rate_is_no_part_of_a_schedule() -> None:
    cells = [dataclasses.replace(c, rate=2.0) for c in (cell(AR), cell(tree(8), 1.5))]
    with pytest.raises(ConfigError, match="no choice to write"):
        schedule_of(summary(*cells))
    both = summary(cell(AR), cell(tree(4), 1.4), *cells)
    assert [entry.arm for entry in schedule_of(both).entries] == [tree(4)]
    assert len(advise(both)) == 2


def test_a_schedule_is_of_our_own_server() -> None:
    with pytest.raises(ConfigError, match="kind sglang"):
        schedule_of(several(endpoint="sglang"))
    with pytest.raises(ConfigError, match="No recommendation"):
        schedule_of(summary(cell(tree(8), 1.8)))


def test_text_and_json_say_the_same() -> None:
    run = several(server=SERVER)
    advice = advise(run)
    text = advice_text(run, advice)
    assert text.startswith(run.verdict.headline)
    assert "context 60, concurrency 1: ddtree(8,4), 2.00x (1.98 to 2.02)" in text
    told = json.loads(json.dumps(advice_dict(run, advice)))
    assert [choice["label"] for choice in told["choices"]] == ["ddtree(8,4)", "ar", "ddtree(8,4)"]
    assert told["choices"][0]["arm"] == {"method": "ddtree", "budget": 8, "topk": 4}
    assert told["choices"][0]["interval"]["low"] == pytest.approx(1.98)
    assert all(line in text for line in told["choices"][0]["launch"].values())
