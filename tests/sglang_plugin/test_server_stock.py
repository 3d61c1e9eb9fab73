"""A stock DFLASH server is the same with this plugin loaded and without it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglang_plugin.sglang_server import (
    FAULTY,
    ON_CPU,
    Answer,
    Pair,
    Server,
    attended,
    launch,
)

pytestmark = [pytest.mark.sglang, pytest.mark.model]

TOKENS = 32
Prompts = list[list[int]]
Seen = list[dict[str, Any]]

# Fields and sampling parameters that DDTREE refuses, or refuses in words of its own.
REFUSED_BY_TREES: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = (
    ({}, {"frequency_penalty": 0.5}),
    ({}, {"presence_penalty": 0.5}),
    ({}, {"repetition_penalty": 1.3}),
    ({}, {"json_schema": "{}"}),
    ({"return_logprob": True}, {}),
)


@dataclass(frozen=True)
class Both:
    """Two DFLASH servers, alike but for the plugin."""

    loaded: Server
    without: Server


def start_chain(pair: Pair, port: int, log: Path, environment: Mapping[str, str]) -> Server:
    """A DFLASH server. SGLANG_PLUGINS in its environment: the only ones it loads."""
    flags = ["--speculative-algorithm", "DFLASH", "--disable-overlap-schedule"]
    flags += ["--speculative-draft-model-path", str(pair.drafter)]
    flags += ["--speculative-dflash-block-size", "8", "--attention-backend", "chain_torch"]
    return launch(pair, port, log, flags, environment, (ON_CPU, FAULTY))


@pytest.fixture(scope="module")
def both(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Started side by side."""
    folder = tmp_path_factory.mktemp("stock")
    loaded, without = (
        start_chain(pair, port, folder / str(port), {"SGLANG_PLUGINS": plugins})
        for port, plugins in ((32030, "ddtree,ddtree_cpu"), (32031, "ddtree_cpu"))
    )
    with attended(loaded, without):
        yield Both(loaded, without)


def seen_of(answers: list[Answer]) -> Seen:
    """Everything of answers that isn't a time or an id."""
    names = ("finish_reason", "spec_verify_ct", "spec_correct_drafts_histogram")
    return [
        {"ids": answer.ids, "refused": answer.text if answer.status != 200 else None}
        | {name: answer.meta.get(name) for name in names}
        for answer in answers
    ]


def refused_by_trees(server: Server, prompts: Prompts) -> Seen:
    """Answers to what a DDTREE server wouldn't serve."""
    return seen_of(
        [
            server.ask(prompts[0], fields, max_new_tokens=8, **sampling)
            for fields, sampling in REFUSED_BY_TREES
        ]
    )


def stops_at_limits(server: Server, prompts: Prompts) -> Seen:
    """Answers with a stop just before the limit: of a run past both SGLang sees the limit alone."""
    whole = server.ask(prompts[6], max_new_tokens=12).ids
    return seen_of(
        [
            server.ask(
                prompts[6],
                max_new_tokens=limit,
                stop_token_ids=[whole[limit - 2]],
                ignore_eos=False,
            )
            for limit in range(2, 13)
        ]
    )


def test_one_of_the_servers_has_the_plugin_and_rows_of_slots_are_as_long(both: Both) -> None:
    loaded, without = (server.log.read_text() for server in (both.loaded, both.without))
    assert "DDTREE registered: True" in loaded
    assert "DDTREE registered: False" in without
    lengths = [re.findall(r"Slots a row: (\d+)", text) for text in (loaded, without)]
    assert lengths[0] == lengths[1] != []


def test_greedy_answers_and_their_rounds_are_equal(both: Both, prompts: Prompts) -> None:
    loaded, without = (
        seen_of(server.ask_all(prompts, 1, max_new_tokens=TOKENS))
        for server in (both.loaded, both.without)
    )
    assert loaded == without
    assert sum(answer["spec_verify_ct"] for answer in without) < 0.9 * TOKENS * len(prompts)


def test_what_trees_refuse_is_served_and_refused_alike(both: Both, prompts: Prompts) -> None:
    without = refused_by_trees(both.without, prompts)
    assert refused_by_trees(both.loaded, prompts) == without
    assert [answer["refused"] is None for answer in without] == [True, True, True, False, False]


def test_stops_before_the_limit_are_seen_alike(both: Both, prompts: Prompts) -> None:
    assert stops_at_limits(both.loaded, prompts) == stops_at_limits(both.without, prompts)


def test_arguments_resolve_alike(both: Both) -> None:
    loaded, without = (server.get("/server_info") for server in (both.loaded, both.without))
    differ = {name for name in {*loaded, *without} if loaded.get(name) != without.get(name)}
    # What a server measures of itself, and where it listens.
    assert differ <= {"internal_states", "port", "nccl_port"}


@pytest.mark.thorough
def test_hooks_that_take_it_for_a_ddtree_server_would_be_seen(
    both: Both, pair: Pair, prompts: Prompts, tmp_path: Path
) -> None:
    plugins = {"SGLANG_PLUGINS": "ddtree,ddtree_cpu,ddtree_fault", "FAULT": "everywhere"}
    with attended(start_chain(pair, 32032, tmp_path / "log", plugins)) as (server,):
        refused = refused_by_trees(server, prompts)
        assert [answer["refused"] is None for answer in refused] == [False] * len(refused)
        assert "DDTREE" in refused[-1]["refused"]
        assert stops_at_limits(server, prompts) != stops_at_limits(both.without, prompts)
