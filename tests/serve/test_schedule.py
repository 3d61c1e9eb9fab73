"""Requests that name no speculation: what they get, over HTTP, from a tiny model."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serve_calls import call, post
from tiny_server import byte_tokenizer, served, tiny_engine

from ddtree.engine import EngineConfig, Speculation
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.schedule import Schedule, ScheduleEntry
from ddtree.serve import DefaultSpeculation
from mutations.planting import Mutation, planted

CHAIN, SMALL, LARGE = Arm("chain"), Arm("ddtree", 3, 2), Arm("ddtree", 6, 3)
SHORT, LONG = [104] * 10, [104] * 40

SCHEDULE = Schedule(
    "tiny",
    (
        ScheduleEntry(8, 1, 0.0, LARGE),
        ScheduleEntry(8, 4, 0.0, SMALL),
        ScheduleEntry(40, 1, 0.0, CHAIN),
    ),
)


def ask(url, prompt, **fields):
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "return_stats": True}
    return post(url, "/v1/completions", body | fields)


def used(answer):
    stats = answer["ddtree"]
    return stats["method"], stats["budget"], stats["topk"]


@pytest.fixture(scope="module")
def url():
    with served(tiny_engine(), byte_tokenizer(), default=DefaultSpeculation(SCHEDULE)) as found:
        yield found


def test_the_prompt_length_and_the_temperature_choose(url):
    assert used(ask(url, SHORT)) == ("ddtree", 6, 3)
    assert used(ask(url, LONG)) == ("chain", 4, 1)
    # Nothing was measured above 0.
    assert used(ask(url, SHORT, temperature=0.8)) == ("ar", 0, 1)


def test_a_requests_own_speculation_wins(url):
    own = {"method": "ddtree", "budget": 2, "topk": 2}
    assert used(ask(url, SHORT, speculation=own)) == ("ddtree", 2, 2)
    assert used(ask(url, LONG, speculation={"method": "ar"})) == ("ar", 0, 1)


def test_answers_are_the_same_whatever_is_chosen(url):
    answers = [
        ask(url, SHORT, max_tokens=12, speculation=own)["choices"][0]["text"]
        for own in (None, {"method": "ar"})
    ]
    assert answers[0] == answers[1]


def check_each_prompt_of_a_call_chooses_for_itself(url):
    answer = ask(url, [SHORT, LONG])
    assert [choice["ddtree"]["method"] for choice in answer["choices"]] == ["ddtree", "chain"]
    answer = ask(url, [SHORT] * 4)
    assert [c["ddtree"]["budget"] for c in answer["choices"]] == [3] * 4


def test_each_prompt_of_a_call_chooses_for_itself(url):
    check_each_prompt_of_a_call_chooses_for_itself(url)
    alone = Mutation(
        "each counts as alone",
        "ddtree.serve.choices",
        (("len(prompt), self.running, temperature", "len(prompt), 1, temperature"),),
        (),
    )
    with planted(alone), pytest.raises(AssertionError):
        check_each_prompt_of_a_call_chooses_for_itself(url)


def test_requests_beside_it_count():
    engine = tiny_engine(EngineConfig(slots=4, max_context=128, prefill_chunk=16))
    gate, step = threading.Event(), engine.step

    def held():
        if gate.is_set():
            return step()
        time.sleep(0.01)
        return []

    engine.step = held
    with (
        served(engine, byte_tokenizer(), default=DefaultSpeculation(SCHEDULE)) as url,
        ThreadPoolExecutor(6) as pool,
    ):
        # Until the gate opens nothing ends: each of these comes while the earlier are in flight.
        coming = []
        for number in range(6):
            coming.append(pool.submit(ask, url, SHORT))
            wait_for(lambda n=number: in_flight(url) == n + 1)
        gate.set()
        budgets = [used(answer.result())[1] for answer in coming]
    # Two are as near to four as to one, and then the higher counts.
    assert budgets == [6, 3, 3, 3, 3, 3]


def in_flight(url):
    _, info = call(url, "/server_info")
    return info["running"] + info["waiting"]


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_without_a_schedule_a_fixed_default_counts():
    default = DefaultSpeculation(fixed=Speculation("ddtree", 5, 2))
    with served(tiny_engine(), byte_tokenizer(), default=default) as url:
        assert used(ask(url, SHORT)) == ("ddtree", 5, 2)
        assert used(ask(url, LONG, temperature=0.8)) == ("ddtree", 5, 2)
        assert used(ask(url, LONG, speculation={"method": "ar"})) == ("ar", 0, 1)


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (Arm("ddtree", 65, 4), "s.json: entry 1: speculation.budget: got 65"),
        (Arm("ddtree", 8, 17), "s.json: entry 1: speculation.topk: got 17"),
    ],
)
def test_an_entry_that_the_server_cannot_do_is_refused_at_start(arm, said):
    schedule = Schedule("tiny", (SCHEDULE.entries[0], ScheduleEntry(40, 1, 0.0, arm)))
    with pytest.raises(ConfigError, match=said):
        DefaultSpeculation(schedule).check(tiny_engine(), "tiny", "s.json")


def test_a_schedule_for_another_model_is_refused_at_start():
    with pytest.raises(ConfigError, match="made for the model 'tiny', this server has 'huge'"):
        DefaultSpeculation(SCHEDULE).check(tiny_engine(), "huge")
    DefaultSpeculation(SCHEDULE).check(tiny_engine(), "tiny")


def test_a_fixed_default_that_the_server_cannot_do_is_refused_at_start():
    fixed = DefaultSpeculation(fixed=Speculation("ddtree", 65, 4))
    with pytest.raises(ConfigError, match=r"default speculation: speculation\.budget: got 65"):
        fixed.check(tiny_engine(), "tiny")


def test_the_schedule_is_shown_as_resolved():
    shown = DefaultSpeculation(SCHEDULE).to_dict()
    assert shown["fallback"] == {"method": "ar"}
    assert [e["speculation"]["method"] for e in shown["entries"]] == ["ddtree", "ddtree", "chain"]
    assert DefaultSpeculation().to_dict() is None
