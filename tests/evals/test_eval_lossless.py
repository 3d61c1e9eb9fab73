"""Outputs held against the baseline's by a server that scores them; open where none can."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ddtree.endpoint.calls import Prompt, ScoredPosition
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import MockFaults, MockScript, continuation
from ddtree.endpoint.mock_talk import MockTalk
from ddtree.evals import generate, lossless
from ddtree.evals.spec import EvalSpec
from ddtree.records.files import read_requests
from ddtree.records.sampling import Sampling
from evals.eval_parts import (
    AR,
    CHAIN,
    TREE,
    WARM,
    Notes,
    OneServer,
    by_key,
    ids_of,
    keep,
    mock,
    reply,
    run,
    spec_of,
    tasks,
)

SOME = tasks(5)
THREE = spec_of(arms=(AR, CHAIN, TREE))
Grades = tuple[dict[str, str], list[str]]


def answered_and_graded(
    folder: Path,
    spec: EvalSpec = THREE,
    script: MockScript | None = None,
    prompts: Mapping[str, Prompt] | None = None,
    talk: MockTalk | None = None,
) -> Grades:
    """A mock answers and scores: grades, and what was said about them."""
    sent = ids_of(SOME) if prompts is None else prompts
    folder.mkdir(exist_ok=True)

    async def work() -> Grades:
        notes = Notes()
        async with mock(script, talk) as (_, client):
            timed = generate.Generation(spec, folder, OneServer(client), Notes(), sent)
            await timed.run(SOME)
            await lossless.grade_outputs(spec, folder, client, sent, notes)
        found = lossless.read_grades(folder)
        return {cell: one.grade for cell, one in found.items()}, notes.notes

    return run(work())


def graded(
    folder: Path,
    spec: EvalSpec,
    prompts: Mapping[str, Prompt],
    records: Sequence,
    talk: MockTalk | None = None,
) -> Grades:
    """Answers on file, and a mock that scores them."""
    keep(folder, records)

    async def work() -> Grades:
        notes = Notes()
        async with mock(talk=talk) as (_, client):
            await lossless.grade_outputs(spec, folder, client, prompts, notes)
        found = lossless.read_grades(folder)
        return {cell: one.grade for cell, one in found.items()}, notes.notes

    return run(work())


def check_identical(tmp_path) -> None:
    grades, notes = answered_and_graded(tmp_path)
    assert grades == {"chain": "exact", "ddtree(8,4)": "exact"}
    assert notes == [
        "grading outputs: chain: exact, 5 of 5 identical, 0 near-ties",
        "grading outputs: ddtree(8,4): exact, 5 of 5 identical, 0 near-ties",
    ]


def test_identical_outputs_are_exact(tmp_path) -> None:
    check_identical(tmp_path)


def check_corrupted(tmp_path) -> None:
    """The one arm alone, whatever stands after its wrong token."""
    script = MockScript(faults=MockFaults(corrupt={"chain": 7}))
    grades, notes = answered_and_graded(tmp_path, script=script)
    assert grades == {"chain": "not-lossless", "ddtree(8,4)": "exact"}
    assert "chain: not-lossless, 0 of 5 identical" in notes[0]


def test_a_corrupted_arm_is_not_lossless(tmp_path) -> None:
    check_corrupted(tmp_path)


def check_samples(tmp_path) -> None:
    spec = spec_of(sampling=WARM, samples=3)
    grades, _ = answered_and_graded(tmp_path / "good", spec)
    assert grades == {"ddtree(8,4)": "exact"}
    script = MockScript(faults=MockFaults(corrupt={"ddtree": 7}))
    grades, notes = answered_and_graded(tmp_path / "bad", spec, script)
    assert grades == {"ddtree(8,4)": "not-lossless"}
    assert "0 of 15 identical" in notes[0]


def test_samples_are_graded_like_any_output(tmp_path) -> None:
    check_samples(tmp_path)


class Listening(ServerClient):
    """Remembers which prompts' outputs were scored, and with which seeds."""

    async def score(
        self,
        token_ids: tuple[int, ...],
        score_from: int,
        rows: int = 1,
        sampling: Sampling | None = None,
    ) -> list[ScoredPosition]:
        self.__dict__.setdefault("scored", set()).add(
            (token_ids[:score_from], None if sampling is None else sampling.seed)
        )
        return await super().score(token_ids, score_from, rows, sampling)


def check_scored_as_drawn(tmp_path) -> None:
    spec, sent = spec_of(sampling=WARM, samples=3), ids_of(SOME)

    async def work() -> None:
        script = MockScript(faults=MockFaults(corrupt={"ddtree": 7}))
        async with MockServer(script) as server, Listening(server.url) as client:
            timed = generate.Generation(spec, tmp_path, OneServer(client), Notes(), sent)
            await timed.run(SOME)
            await lossless.grade_outputs(spec, tmp_path, client, sent, Notes())
            drawn = {(entry.prompt, entry.sampling.seed) for entry in server.log}
            assert len(drawn) == 15
            assert vars(client)["scored"] == drawn

    run(work())


def test_each_sample_is_scored_with_the_seed_it_was_drawn_with(tmp_path) -> None:
    check_scored_as_drawn(tmp_path)


def test_the_baseline_s_second_run_is_graded_as_well(tmp_path) -> None:
    grades, _ = answered_and_graded(tmp_path, spec_of(noise=True))
    assert grades == {"ddtree(8,4)": "exact", "ar, again": "exact"}


@pytest.mark.parametrize("kind", ["text sent", "text got"])
def test_without_token_ids_it_stays_open(kind: str, tmp_path) -> None:
    prompts: dict[str, Prompt] | None = {item.id: item.prompt for item in SOME}
    talk = None
    if kind == "text got":
        prompts, talk = None, MockTalk("openai")
    grades, notes = answered_and_graded(tmp_path, prompts=prompts, talk=talk)
    assert grades == {"chain": "unclassified", "ddtree(8,4)": "unclassified"}
    assert notes[0] == "grading outputs: there are no token ids, differences stay open"


ONE_ARM = spec_of()
PROMPTS = ids_of(SOME)


def ids(cell: str, number: int, token_ids: tuple[int, ...], **fields):
    return reply(cell, number, "", counted="ids", token_ids=token_ids, **fields)


def true_ids(number: int) -> tuple[int, ...]:
    prompt = PROMPTS[f"add#{number}"]
    assert isinstance(prompt, tuple)
    return continuation(prompt, ONE_ARM.max_tokens)


LENGTH = {"finish_reason": "length"}


def check_pairs_by_task(tmp_path) -> None:
    """Arms finish in another order than the baseline, and not always everything."""
    base = [ids("ar", n, true_ids(n), **LENGTH) for n in (1, 2, 3)]
    arm = [ids(TREE.label, n, true_ids(n), **LENGTH) for n in (3, 2, 1, 4)]
    grades, notes = graded(tmp_path, ONE_ARM, PROMPTS, [*base, *arm])
    assert grades == {TREE.label: "exact"}
    assert "3 of 3 identical" in notes[0]


def test_outputs_are_paired_by_task(tmp_path) -> None:
    check_pairs_by_task(tmp_path)


def test_failed_answers_are_no_outputs(tmp_path) -> None:
    broken = ids(TREE.label, 2, (1, 2), error="broken_stream: gone")
    records = [ids(cell, 1, true_ids(1), **LENGTH) for cell in ("ar", TREE.label)]
    grades, notes = graded(
        tmp_path, ONE_ARM, PROMPTS, [*records, ids("ar", 2, true_ids(2), **LENGTH), broken]
    )
    assert grades == {TREE.label: "exact"}
    assert "1 of 1 identical" in notes[0]


def test_no_answer_of_an_arm_leaves_it_open(tmp_path) -> None:
    grades, _ = graded(tmp_path, ONE_ARM, PROMPTS, [ids("ar", 1, true_ids(1), **LENGTH)])
    assert grades == {TREE.label: "unclassified"}


def test_a_server_that_cannot_score_leaves_differences_open(tmp_path) -> None:
    spec = THREE
    base = [ids("ar", n, true_ids(n), **LENGTH) for n in (1, 2)]
    other = (*true_ids(2)[:-1], 77)
    tree = [ids(TREE.label, 1, true_ids(1), **LENGTH), ids(TREE.label, 2, other, **LENGTH)]
    chain = [ids("chain", n, true_ids(n), **LENGTH) for n in (1, 2)]
    grades, notes = graded(tmp_path, spec, PROMPTS, [*base, *tree, *chain], talk=MockTalk("openai"))
    assert grades == {"chain": "exact", TREE.label: "unclassified"}
    assert notes[0].startswith("grading outputs: differences stay open: an endpoint of kind openai")


def test_a_text_that_the_server_will_not_score_leaves_its_arm_open(tmp_path) -> None:
    """A grade that can't be had is no reason to lose the others, or the answers."""
    beyond = (1 << 40, *true_ids(1)[1:])
    records = [ids("ar", n, true_ids(n), **LENGTH) for n in (1, 2)]
    records += [ids("chain", 1, beyond, **LENGTH), ids("chain", 2, true_ids(2), **LENGTH)]
    records += [ids(TREE.label, n, true_ids(n), **LENGTH) for n in (1, 2)]
    grades, notes = graded(tmp_path, THREE, PROMPTS, records)
    assert grades == {"chain": "unclassified", TREE.label: "exact"}
    assert any("chain" in note and "HTTP 500" in note for note in notes)


def test_answers_in_part_without_token_ids_leave_their_arm_open(tmp_path) -> None:
    """What can't be compared is not among what was found to be exact."""
    records = [ids(cell, 1, true_ids(1), **LENGTH) for cell in ("ar", TREE.label)]
    records += [reply("ar", 2, "one text", **LENGTH), reply(TREE.label, 2, "another", **LENGTH)]
    grades, _ = graded(tmp_path, ONE_ARM, PROMPTS, records)
    assert grades == {TREE.label: "unclassified"}


def test_a_stop_string_is_no_token_that_ends_a_sequence(tmp_path) -> None:
    """What a completion's stop string ended in may come earlier in another output."""
    spec = spec_of(prompting="completion")
    base, other = (5, 6, 9), (5, 9, 7)
    records = [ids("ar", 1, base), ids(TREE.label, 1, other)]
    grades, _ = graded(tmp_path, spec, PROMPTS, records, talk=MockTalk("openai"))
    assert grades == {TREE.label: "unclassified"}


def test_running_past_the_end_in_a_chat_is_a_fault(tmp_path) -> None:
    base, other = (5, 6, 9), (5, 9, 7)
    records = [ids("ar", 1, base), ids(TREE.label, 1, other)]
    grades, _ = graded(tmp_path, ONE_ARM, PROMPTS, records, talk=MockTalk("openai"))
    assert grades == {TREE.label: "not-lossless"}


def test_grades_are_kept_and_made_anew(tmp_path) -> None:
    assert lossless.read_grades(tmp_path) == {}
    script = MockScript(faults=MockFaults(corrupt={"ddtree": 2}))
    answered_and_graded(tmp_path, ONE_ARM, script)
    path = tmp_path / lossless.GRADES_FILE
    kept = json.loads(path.read_text())[TREE.label]
    assert (kept["grade"], kept["bugs"] + kept["suspects"]) == ("not-lossless", kept["outputs"])
    requests = tmp_path / generate.REQUESTS_FILE
    before = read_requests(requests)
    requests.unlink()
    grades, _ = answered_and_graded(tmp_path, ONE_ARM)
    assert grades == {TREE.label: "exact"}
    assert by_key(*before).keys() == by_key(*read_requests(requests)).keys()
