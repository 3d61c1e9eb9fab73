"""Schedules: what is chosen when, and files that can't be used."""

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.errors import ConfigError
from ddtree.records import schedule as module
from ddtree.records.arms import Arm
from ddtree.records.schedule import FALLBACK, Schedule, ScheduleEntry, parse_schedule
from mutations.planting import Mutation, planted

CHAIN, SMALL, LARGE = Arm("chain"), Arm("ddtree", 8, 4), Arm("ddtree", 64, 16)

entries = st.lists(
    st.builds(
        ScheduleEntry,
        st.sampled_from([60, 1024, 4096, 8192]),
        st.sampled_from([1, 2, 8, 32, 64]),
        st.sampled_from([0.0, 0.3, 0.7, 1.0]),
        st.builds(Arm, st.just("ddtree"), st.integers(1, 99), st.integers(1, 9)),
        st.none() | st.floats(0.5, 4),
    ),
    min_size=1,
    unique_by=lambda entry: entry.place,
)
requests = st.tuples(
    st.integers(1, 20_000), st.integers(1, 200), st.sampled_from([0.0, 0.1, 0.5, 0.71, 2.0])
)


def check_rules(known: list[ScheduleEntry], request: tuple[int, int, float]) -> None:
    """The rules, written apart from the code under test: no entry would be a better match."""
    prompt, running, temperature = request
    chosen = module.Schedule("m", tuple(known)).choose(prompt, running, temperature)
    fitting = [e for e in known if (e.temperature > 0) == (temperature > 0)]
    if not fitting:
        assert chosen == FALLBACK
        return
    (entry, *_) = [e for e in fitting if e.arm == chosen]
    near = min(abs(e.temperature - temperature) for e in fitting)
    alike = [e for e in fitting if abs(e.temperature - temperature) == near]
    assert any(e.arm == chosen for e in alike)
    alike = [e for e in alike if e.temperature == min(e.temperature for e in alike)]
    entry = next(e for e in alike if e.arm == chosen)
    for other in alike:
        if other.context <= prompt:
            assert entry.context <= prompt
            assert entry.context >= other.context
        elif entry.context > prompt:
            assert entry.context <= other.context
    for other in [e for e in alike if e.context == entry.context]:
        mine, theirs = (abs(math.log(e.concurrency / running)) for e in (entry, other))
        assert mine <= theirs + 1e-9


def distinct(known: list[ScheduleEntry]) -> list[ScheduleEntry]:
    """With arms by which each entry is recognised."""
    return [
        ScheduleEntry(e.context, e.concurrency, e.temperature, Arm("ddtree", n + 1, 1), e.speedup)
        for n, e in enumerate(known)
    ]


@given(entries, requests)
def test_no_entry_matches_better_than_the_one_chosen(
    known: list[ScheduleEntry], request: tuple[int, int, float]
) -> None:
    check_rules(distinct(known), request)


@given(entries, requests, st.randoms())
def test_the_order_of_entries_does_not_matter(
    known: list[ScheduleEntry], request: tuple[int, int, float], rng: object
) -> None:
    shuffled = list(known)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = (Schedule("m", tuple(group)).choose(*request) for group in (known, shuffled))
    assert first == second


@given(entries)
def test_a_file_reads_back(known: list[ScheduleEntry]) -> None:
    schedule = Schedule("m", tuple(known))
    assert parse_schedule(schedule.to_json(), "f") == schedule


def grid() -> list[ScheduleEntry]:
    return [
        ScheduleEntry(60, 1, 0.0, LARGE),
        ScheduleEntry(60, 8, 0.0, SMALL),
        ScheduleEntry(1024, 1, 0.0, SMALL),
        ScheduleEntry(1024, 8, 0.0, CHAIN),
        ScheduleEntry(60, 1, 0.7, CHAIN),
    ]


@pytest.mark.parametrize(
    ("request_", "arm"),
    [
        ((60, 1, 0.0), LARGE),
        ((1023, 1, 0.0), LARGE),
        ((1024, 1, 0.0), SMALL),
        ((9999, 8, 0.0), CHAIN),
        # Shorter than any: the shortest there is.
        ((5, 8, 0.0), SMALL),
        # On a log scale 3 is beyond the middle of 1 and 8, and 2 before it.
        ((60, 2, 0.0), LARGE),
        ((60, 3, 0.0), SMALL),
        ((60, 500, 0.0), SMALL),
        # Only one entry samples, whatever its context and concurrency.
        ((9999, 64, 1.5), CHAIN),
    ],
)
def test_examples(request_: tuple[int, int, float], arm: Arm) -> None:
    assert Schedule("m", tuple(grid())).choose(*request_) == arm


def test_equally_near_concurrencies_take_the_higher() -> None:
    known = [ScheduleEntry(60, 2, 0.0, SMALL), ScheduleEntry(60, 8, 0.0, CHAIN)]
    assert Schedule("m", tuple(known)).choose(60, 4, 0.0) == CHAIN


def test_a_temperature_that_nothing_was_measured_at_gets_no_speculation() -> None:
    sampled = Schedule("m", (ScheduleEntry(60, 1, 0.7, SMALL),))
    greedy = Schedule("m", (ScheduleEntry(60, 1, 0.0, SMALL),))
    assert sampled.choose(60, 1, 0.0) == greedy.choose(60, 1, 0.7) == FALLBACK == Arm("ar")


def check_a_greedy_schedule() -> None:
    known = distinct(grid()[:4])
    for prompt in (1, 60, 1000, 1024, 5000):
        for running in (1, 2, 3, 8, 64):
            for temperature in (0.0, 0.7):
                check_rules(known, (prompt, running, temperature))


@pytest.mark.parametrize(
    "edit",
    [
        ("max(reached) if reached", "min(reached) if reached"),
        ("max(concurrency / running, running / concurrency)", "abs(concurrency - running)"),
        ("return [entry for entry in entries if entry.temperature == 0]", "return list(entries)"),
        ("        return FALLBACK\n", "        fitting = list(self.entries)\n"),
        ("e.context <= prompt_tokens", "e.context < prompt_tokens"),
    ],
    ids=["context", "log scale", "greedy", "fallback", "edge"],
)
def test_planted_bugs_are_caught(edit: tuple[str, str]) -> None:
    def check() -> None:
        check_a_greedy_schedule()
        sampled = distinct([*grid(), ScheduleEntry(60, 2, 0.0, CHAIN)])
        check_rules(sampled, (60, 5, 0.0))
        check_rules([sampled[4]], (60, 1, 0.0))
        assert module.Schedule("m", tuple(grid())).choose(60, 4, 0.0) == SMALL

    check()
    bug = Mutation(str(edit), "ddtree.records.schedule", (edit,), (check,))
    with planted(bug), pytest.raises(AssertionError):
        check()


def good() -> dict[str, object]:
    return Schedule("m", tuple(grid())).to_dict()


def entry(number: int, **changes: object) -> Callable[[dict[str, object]], None]:
    def change(data: dict[str, object]) -> None:
        data["entries"][number].update(changes)  # type: ignore[index]

    return change


def speculation(**fields: object) -> Callable[[dict[str, object]], None]:
    return entry(1, speculation=fields)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema_version=2), "schema_version 2, expected 1"),
        (lambda d: d.pop("schema_version"), "schema_version None"),
        (lambda d: d.pop("model"), "model is missing"),
        (lambda d: d.update(model=3), "model: got 3"),
        (lambda d: d.update(notes="x"), "'notes' is unknown"),
        (lambda d: d.update(entries=[]), "entries: expected a list of at least one"),
        (lambda d: d.update(entries={}), "entries: expected a list"),
        (lambda d: d["entries"].append(7), "entry 5: got 7"),
        (lambda d: d["entries"][2].pop("context"), "entry 2: context is missing"),
        (entry(2, colour="red"), "entry 2: 'colour' is unknown"),
        (entry(2, context=0), "entry 2: context: got 0"),
        (entry(2, context=True), "entry 2: context: got True"),
        (entry(2, concurrency=1.5), "entry 2: concurrency: got 1.5"),
        (entry(2, temperature=-1), "entry 2: temperature: got -1"),
        (entry(2, temperature="hot"), "entry 2: temperature: got 'hot'"),
        (entry(2, speedup="fast"), "entry 2: speedup: got 'fast'"),
        (entry(1, concurrency=1), "entry 1: context 60, concurrency 1 and temperature 0 are"),
        (entry(1, speculation="ddtree"), "entry 1: speculation: got 'ddtree'"),
        (speculation(method="tree"), "entry 1: speculation: method: got 'tree'"),
        (speculation(budget=8), "entry 1: speculation: method is missing"),
        (speculation(method="ddtree", budget=8), "entry 1: speculation: topk"),
        (speculation(method="ddtree", budget=0, topk=4), "speculation: budget: got 0"),
        (speculation(method="ddtree", budget="8", topk=4), "speculation: budget: got '8'"),
        (speculation(method="chain", topk=4), "belong to ddtree"),
        (speculation(method="chain", draft_window="wide"), "draft_window: got 'wide'"),
        (speculation(method="chain", depth=3), "unknown field 'depth'"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    change: Callable[[dict[str, object]], None], said: str
) -> None:
    data = json.loads(json.dumps(good()))
    change(data)
    with pytest.raises(ConfigError) as caught:
        parse_schedule(json.dumps(data), "s.json")
    assert str(caught.value).startswith("s.json: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "[", "[]", "null", '"schedule"', "{}"])
def test_a_text_that_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"s\.json: "):
        parse_schedule(text, "s.json")


def test_numbers_that_are_none_are_refused() -> None:
    text = json.dumps(good()).replace("0.7", "NaN")
    with pytest.raises(ConfigError, match="entry 4: temperature"):
        parse_schedule(text, "s.json")
