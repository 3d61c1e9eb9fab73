"""The timed part against a mock server: who is asked what, in which order, and how often."""

from collections import Counter
from itertools import groupby

import pytest
from aiohttp import web

from ddtree.endpoint.calls import Chat
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import MockFaults, MockScript, continuation
from ddtree.endpoint.mock_talk import MockTalk
from ddtree.errors import ConfigError, EndpointError
from ddtree.evals import generate
from ddtree.evals.prompting import chat_text
from ddtree.evals.tasks import Task
from evals.eval_parts import (
    AR,
    CHAIN,
    QUICK,
    TREE,
    WARM,
    Notes,
    OneServer,
    ask,
    ids_of,
    log_of,
    mock,
    run,
    spec_of,
    task,
    tasks,
)
from support.streams import record as request_record

ARMS = (AR, CHAIN, TREE)


def sent(server: MockServer, method: str) -> list[tuple[int, ...]]:
    return [entry.prompt for entry in server.log if entry.method == method]


def blocks(folder) -> list[tuple[int, str]]:
    """(block, side) in the order in which they were asked."""
    return [key for key, _ in groupby(log_of(folder), key=lambda r: (r.block, r.cell))]


def test_every_arm_answers_every_task(tmp_path) -> None:
    some = tasks(6)
    asked = ask(tmp_path, spec_of(arms=ARMS), some)
    for arm in ARMS:
        assert sorted(sent(asked.server, arm.method)) == sorted(ids_of(some).values())
        answers = generate.answers_of(tmp_path, generate.Side(arm))
        assert sorted(answers) == sorted((item.id, 0) for item in some)
        for item in some:
            record = answers[item.id, 0]
            assert record.token_ids == continuation(ids_of(some)[item.id], 12)
            assert record.text == "".join(f" t{token}" for token in record.token_ids)
    assert {entry.max_tokens for entry in asked.server.log} == {12}
    assert [entry.speculation for entry in asked.server.log if entry.method == "ddtree"] == [
        TREE.to_request()
    ] * 6
    assert asked.notes.work == asked.notes.done == 18
    assert asked.notes.notes == []


def check_blocks_go_forth_and_back(tmp_path) -> None:
    some = tasks(9)
    spec = spec_of(arms=ARMS, noise=True)
    assert [len(block) for block in generate.blocks_of(spec, some)] == [4, 4, 1]
    ask(tmp_path, spec, some)
    forth = ["ar", "chain", "ddtree(8,4)", "ar, again"]
    assert blocks(tmp_path) == [
        *((0, cell) for cell in forth),
        *((1, cell) for cell in reversed(forth)),
        *((2, cell) for cell in forth),
    ]
    for (block, _), group in groupby(log_of(tmp_path), key=lambda r: (r.block, r.cell)):
        names = [record.prompt_id for record in group]
        assert names == [f"add#{n}#0" for n in range(1, 10)][4 * block : 4 * block + 4]


def test_blocks_go_forth_and_back(tmp_path) -> None:
    check_blocks_go_forth_and_back(tmp_path)


@pytest.mark.parametrize(
    ("concurrency", "samples", "size"), [(1, 1, 4), (4, 1, 16), (4, 5, 3), (1, 8, 1), (2, 3, 2)]
)
def test_a_block_keeps_the_slots_busy(concurrency: int, samples: int, size: int) -> None:
    spec = spec_of(concurrency=concurrency, samples=samples, sampling=WARM)
    some = tasks(2 * size + 1)
    found = generate.blocks_of(spec, some)
    assert [len(block) for block in found[:2]] == [size, size]
    assert [item for block in found for item in block] == some


def test_as_many_at_a_time_as_asked_for(tmp_path) -> None:
    script = MockScript(round_s={"ar": 0.005, "ddtree": 0.005})
    asked = ask(tmp_path, spec_of(concurrency=3), tasks(6), script)
    assert asked.server.peak_in_flight == 3


def check_noise_is_a_second_run(tmp_path) -> None:
    some = tasks(3)
    asked = ask(tmp_path, spec_of(noise=True), some)
    assert Counter(entry.method for entry in asked.server.log) == {"ar": 6, "ddtree": 3}
    first = generate.answers_of(tmp_path, generate.Side(AR))
    second = generate.answers_of(tmp_path, generate.Side(AR, again=True))
    assert set(first) == set(second) == {(item.id, 0) for item in some}
    assert not {r.sent_s for r in first.values()} & {r.sent_s for r in second.values()}


def test_each_arm_warms_a_server_up_once_and_keeps_nothing_of_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(generate, "WARM_TOKENS", 2)
    some, spec = tasks(9), spec_of(noise=True)
    server = ask(tmp_path, spec, some, warm_up=True).server
    warming = [entry for entry in server.log if entry.max_tokens == 2]
    assert Counter(entry.method for entry in warming) == dict.fromkeys(
        ("ar", "ddtree"), spec.concurrency
    )
    for method in ("ar", "ddtree"):
        mine = [entry.max_tokens for entry in server.log if entry.method == method]
        assert mine[: spec.concurrency] == [2] * spec.concurrency
    assert len(log_of(tmp_path)) == 27
    assert {sum(record.chunk_tokens) for record in log_of(tmp_path)} == {spec.max_tokens}


def test_servers_that_stand_alone_are_asked_in_two_blocks() -> None:
    found = generate.blocks_of(spec_of(), tasks(9), alone=True)
    assert [len(block) for block in found] == [5, 4]


def test_noise_is_a_second_run_of_the_baseline(tmp_path) -> None:
    check_noise_is_a_second_run(tmp_path)


def check_samples_differ_and_arms_do_not(tmp_path) -> None:
    some = tasks(3)
    spec = spec_of(sampling=WARM, samples=3, concurrency=2)
    asked = ask(tmp_path, spec, some)
    seeds = {
        method: {(entry.prompt, entry.sampling.seed) for entry in asked.server.log}
        for method in ("ar", "ddtree")
    }
    assert seeds["ar"] == seeds["ddtree"]
    assert len({seed for _, seed in seeds["ar"]}) == 9
    base, tree = (generate.answers_of(tmp_path, generate.Side(arm)) for arm in (AR, TREE))
    assert sorted(base) == sorted((item.id, n) for item in some for n in range(3))
    for key, record in base.items():
        assert record.token_ids == tree[key].token_ids
    assert len({record.token_ids for record in base.values()}) == 9


def test_samples_differ_and_arms_do_not(tmp_path) -> None:
    check_samples_differ_and_arms_do_not(tmp_path)


def check_only_what_is_missing(tmp_path) -> None:
    some, spec = tasks(6), spec_of(noise=True)
    ask(tmp_path, spec, some)
    path = tmp_path / generate.REQUESTS_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    gone = [0, 7, len(lines) - 1]
    lost = [log_of(tmp_path)[n] for n in gone]
    # A kill tears the last line.
    path.write_bytes(b"".join(line for n, line in enumerate(lines) if n not in gone) + b'{"cell":')
    asked = ask(tmp_path, spec, some)
    prompts = ids_of(some)
    assert [(entry.method, entry.prompt) for entry in asked.server.log] == [
        (
            "ddtree" if r.cell == TREE.label else "ar",
            prompts[r.prompt_id.removesuffix("#0")],
        )
        for r in sorted(lost, key=lambda r: r.block)
    ]
    for side in generate.sides_of(spec):
        assert len(generate.answers_of(tmp_path, side)) == 6
    assert asked.notes.work == asked.notes.done == 18
    assert ask(tmp_path, spec, some).server.log == []


def test_a_second_run_asks_for_what_is_missing(tmp_path) -> None:
    check_only_what_is_missing(tmp_path)


def test_a_side_reads_its_own_answers(tmp_path) -> None:
    """Another arm's, another side's and failed ones are none of them; the last one counts."""
    folder, cell = tmp_path, TREE.label
    path = folder / generate.REQUESTS_FILE
    records = [
        request_record("a#0", cell=cell, token_ids=(1,)),
        request_record("a#0", cell="ddtree(8,8)", token_ids=(2,)),
        request_record("odd#1#12", cell=cell, token_ids=(3,)),
        request_record("b#0", cell=cell, error="in_band: no"),
        request_record("a#0", cell="ar", token_ids=(4,)),
        request_record("a#0", cell="ar, again", token_ids=(5,)),
        request_record("a#0", cell="ar", error="in_band: no"),
    ]
    path.write_text("".join(record.to_json() + "\n" for record in records))

    def read(side: generate.Side) -> dict[tuple[str, int], tuple[int, ...]]:
        return {key: r.token_ids for key, r in generate.answers_of(folder, side).items()}

    assert read(generate.Side(TREE)) == {("a", 0): (1,), ("odd#1", 12): (3,)}
    assert read(generate.Side(AR)) == {("a", 0): (4,)}
    assert read(generate.Side(AR, again=True)) == {("a", 0): (5,)}
    assert generate.answers_of(folder / "none", generate.Side(AR)) == {}


def check_failures_are_asked_again_and_left_out(tmp_path) -> None:
    some, spec = tasks(3), spec_of()
    asked = ask(tmp_path, spec, some, MockScript(faults=MockFaults(error_share=1.0)))
    times = Counter((entry.method, entry.prompt) for entry in asked.server.log)
    assert set(times.values()) == {generate.ATTEMPTS}
    assert len(times) == 6
    assert Counter(record.attempt for record in log_of(tmp_path)) == {0: 6, 1: 6}
    for side in generate.sides_of(spec):
        assert generate.answers_of(tmp_path, side) == {}
    assert "ar, add#1: in_band: scripted error" in asked.notes.notes
    assert asked.servers.revived == []
    assert asked.notes.work == asked.notes.done == 6
    # Another run tries them anew.
    again = ask(tmp_path, spec, some)
    assert len(again.server.log) == 6
    assert len(generate.answers_of(tmp_path, generate.Side(TREE))) == 3


def test_failures_are_asked_again_and_left_out(tmp_path) -> None:
    check_failures_are_asked_again_and_left_out(tmp_path)


def check_a_server_that_answers_stays(tmp_path) -> None:
    """Every second request is refused: only those go out again, to the same server."""
    some = tasks(4)
    script = MockScript(faults=MockFaults(refuse_share=0.5))
    asked = ask(tmp_path, spec_of(arms=(AR,)), some, script)
    names = [(r.prompt_id, r.attempt, r.error is None) for r in log_of(tmp_path)]
    assert names == [
        ("add#1#0", 0, True),
        ("add#2#0", 0, False),
        ("add#3#0", 0, True),
        ("add#4#0", 0, False),
        ("add#2#0", 1, True),
        ("add#4#0", 1, False),
    ]
    assert sorted(generate.answers_of(tmp_path, generate.Side(AR))) == [
        (f"add#{n}", 0) for n in (1, 2, 3)
    ]
    assert asked.servers.revived == []


def test_a_server_that_answers_is_not_started_again(tmp_path) -> None:
    check_a_server_that_answers_stays(tmp_path)


def test_a_dead_server_is_started_again(tmp_path) -> None:
    some, notes = tasks(3), Notes()

    async def work() -> tuple[MockServer, OneServer]:
        async with (
            mock() as (server, fresh),
            ServerClient("http://127.0.0.1:9", deadlines=QUICK) as dead,
        ):
            servers = OneServer(dead, spare=fresh)
            timed = generate.Generation(spec_of(), tmp_path, servers, notes, ids_of(some))
            await timed.run(some)
            return server, servers

    server, servers = run(work())
    assert servers.revived == [AR]
    assert len([note for note in notes.notes if note.startswith("starting the server again")]) == 1
    # Three answers of each arm, which warmed the fresh server up first.
    assert Counter(entry.method for entry in server.log) == {"ar": 4, "ddtree": 4}
    assert Counter(r.attempt for r in log_of(tmp_path) if r.error is None) == {0: 3, 1: 3}


def test_no_server_ends_the_run(tmp_path) -> None:
    class Nobody(OneServer):
        async def revive(self, arm) -> None:
            raise EndpointError("it does not start")

    async def work() -> None:
        async with ServerClient("http://127.0.0.1:9", deadlines=QUICK) as dead:
            timed = generate.Generation(
                spec_of(), tmp_path, Nobody(dead), Notes(), ids_of(tasks(1))
            )
            await timed.run(tasks(1))

    with pytest.raises(EndpointError, match="it does not start"):
        run(work())
    assert [r.error is None for r in log_of(tmp_path)] == [False]


class Templated(MockServer):
    """Says how it puts a turn into its template."""

    around: tuple[str, str] | None = ("<user> ", " <assistant>\n")

    async def _info(self, http: web.Request) -> web.Response:
        return web.json_response({"slots": 64, "chat_format": self.around})


def prompts(spec, some: list[Task], around: tuple[str, str] | None = Templated.around):
    async def work():
        server = Templated()
        server.around = around
        async with server, ServerClient(server.url, deadlines=QUICK) as client:
            found = await generate.prompts_of(spec, some, client)
            texts = {
                name: await client.detokenize(ids) if isinstance(ids, tuple) else None
                for name, ids in found.items()
            }
            return found, texts

    return run(work())


def test_our_server_gets_token_ids_of_the_whole_turn() -> None:
    some = tasks(2)
    found, texts = prompts(spec_of(), some)
    assert list(found) == ["add#1", "add#2"]
    for item in some:
        assert isinstance(found[item.id], tuple)
        assert texts[item.id] == f"<user> {chat_text(item)} <assistant>\n"


@pytest.mark.parametrize("around", [None, Templated.around, ("<user>", "<assistant><think>\n")])
def test_our_server_gets_token_ids_of_a_completion(around) -> None:
    """Whatever the chat template does: it has no part in it."""
    found, texts = prompts(spec_of(prompting="completion"), tasks(1), around)
    assert isinstance(found["add#1"], tuple)
    assert texts["add#1"] == task(1).prompt


@pytest.mark.parametrize(
    ("changes", "around"),
    [
        ({}, None),
        ({"thinking": False}, Templated.around),
        ({"template": (("effort", "low"),)}, Templated.around),
        ({"thinking": True}, ("<user>", "<assistant><think>\n")),
    ],
)
def test_a_conversation_stays_where_a_template_has_to_be_set(changes, around) -> None:
    found, _ = prompts(spec_of(**changes), tasks(1), around)
    prompt = found["add#1"]
    assert isinstance(prompt, Chat)
    assert prompt.messages[0].content == chat_text(task(1))


@pytest.mark.parametrize("opening", ["<think>\n", "[THINK]", "<seed:think>\n\n"])
def test_a_template_that_opens_thinking_has_to_be_told(opening: str) -> None:
    with pytest.raises(ConfigError, match=r"thinking: the chat template ends in .*; switch it"):
        prompts(spec_of(), tasks(1), ("<user>", "<assistant>" + opening))


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
def test_other_servers_get_the_text(kind) -> None:
    async def work(spec):
        async with mock(talk=MockTalk(kind)) as (_, client):
            return await generate.prompts_of(spec, tasks(1), client)

    chat = run(work(spec_of()))["add#1"]
    assert isinstance(chat, Chat)
    assert run(work(spec_of(prompting="completion"))) == {"add#1": task(1).prompt}
