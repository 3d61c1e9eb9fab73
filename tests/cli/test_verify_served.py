"""The command on servers of other kinds, where an arm is a launch: two mocks of known truth."""

import asyncio
import contextlib
import json
import threading

import pytest

from ddtree.cli import main
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import VOCABULARY, MockFaults, MockScript
from ddtree.endpoint.mock_talk import MockTalk
from support.words import word_tokenizer


@contextlib.contextmanager
def mocks(*servers):
    """The servers on a thread; their URLs are valid inside."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    over = asyncio.Event()

    async def serve():
        async with contextlib.AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield [server.url for server in servers]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.fixture
def files(tmp_path):
    """Options that name two prompts, and a tokenizer of the words that mocks answer with."""
    word_tokenizer(VOCABULARY).save(str(tmp_path / "tokenizer.json"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"t5 t9 t23"\n"t60 t2"\n')
    return ("--prompts", str(prompts), "--tokenizer", str(tmp_path), "--max-tokens", "12")


def pair(kind, corrupt=None, **script):
    """A server without a drafter and one with a chain, which is at fault at a place if any."""
    faults = MockFaults(corrupt={} if corrupt is None else {"chain": corrupt})
    return (
        MockServer(MockScript(**script), talk=MockTalk(kind)),
        MockServer(MockScript(faults=faults, **script), talk=MockTalk(kind, method="chain")),
    )


def verify(capsys, monkeypatch, urls, *options):
    """Exit status, report and what was said besides."""
    command = ["ddtree", "verify", "--baseline-url", urls[0], "--url", urls[1], "--json"]
    monkeypatch.setattr("sys.argv", [*command, *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    shown = capsys.readouterr()
    return stopped.value.code, json.loads(shown.out or "null"), shown.err


@pytest.mark.parametrize("kind", ["openai", "vllm"])
def test_equal_servers_are_exact(capsys, monkeypatch, files, kind):
    """With ids and without, texts that end by themselves among them."""
    with mocks(*pair(kind, eos_every=10)) as urls:
        options = (*files, "--kind", kind, "--dtype", "bfloat16")
        code, found, err = verify(capsys, monkeypatch, urls, *options)
    assert (code, found["verdict"]) == (0, "exact")
    assert "a fault that all arms share would not show" in found["headline"]
    (greedy,) = found["results"]
    assert greedy["sampling"]["temperature"] == 0
    assert [row["arm"]["method"] for row in greedy["rows"]] == ["ar", "chain", "ar", "chain"]
    assert "differences stay unclassified" in err


@pytest.mark.parametrize("place", [3, 11])
def test_a_server_that_hides_scores_is_unclassified(capsys, monkeypatch, files, place):
    """Text alone, inside and at its end."""
    with mocks(*pair("openai", corrupt=place)) as urls:
        options = (*files, "--kind", "openai", "--dtype", "bfloat16")
        code, found, _ = verify(capsys, monkeypatch, urls, *options)
    assert (code, found["verdict"]) == (4, "unclassified")
    assert [row["losslessness"]["grade"] for row in found["results"][0]["rows"]] == [
        "exact",
        "unclassified",
        "exact",
        "unclassified",
    ]


def test_seeded_text_of_such_servers_is_compared(capsys, monkeypatch, files):
    """The mocks share their noise; one that drops it differs."""
    options = (*files, "--kind", "openai", "--dtype", "bfloat16", "--temperature", "1")
    with mocks(*pair("openai")) as urls:
        code, found, _ = verify(capsys, monkeypatch, urls, *options)
    assert (code, found["results"][0]["sampling"]["temperature"]) == (0, 1.0)
    with mocks(*pair("openai", corrupt=0)) as urls:
        assert verify(capsys, monkeypatch, urls, *options)[0] == 4


def test_log_probabilities_judge_where_rounding_is_small(capsys, monkeypatch, files):
    with mocks(*pair("vllm", corrupt=3)) as urls:
        options = (*files, "--kind", "vllm", "--dtype", "float32")
        code, found, _ = verify(capsys, monkeypatch, urls, *options)
    assert (code, found["verdict"]) == (3, "not-lossless")
    assert found["results"][0]["rows"][1]["losslessness"]["bugs"] == 2


def test_the_budget_says_what_the_server_runs_with(capsys, monkeypatch, files):
    with mocks(*pair("openai")) as urls:
        options = (*files, "--kind", "openai", "--dtype", "bfloat16")
        _, found, _ = verify(capsys, monkeypatch, urls, *options, "--budget", "16")
        assert found["results"][0]["rows"][1]["arm"]["budget"] == 16
        two = ("--budget", "8", "--budget", "16")
        code, _, err = verify(capsys, monkeypatch, urls, *options, *two)
    assert (code, "--budget" in err) == (1, True)


def test_the_dtype_is_the_server_s_or_the_caller_s(capsys, monkeypatch, files):
    told_so = {"vllm_config": {"model_config": {"dtype": "torch.float32"}}}
    talk = MockTalk("vllm", reported=told_so)
    with mocks(MockServer(talk=MockTalk("openai")), MockServer(talk=talk)) as (silent, told):
        code, _, err = verify(capsys, monkeypatch, (silent, silent), *files, "--kind", "openai")
        assert (code, "names no dtype" in err) == (1, True)
        options = (*files, "--kind", "vllm")
        assert verify(capsys, monkeypatch, (told, told), *options)[1]["dtype"] == "float32"
        code, _, err = verify(capsys, monkeypatch, (told, told), *options, "--dtype", "bfloat16")
        assert (code, "says float32" in err) == (1, True)
        options = (*files, "--kind", "openai", "--dtype", "int3")
        code, _, err = verify(capsys, monkeypatch, (silent, silent), *options)
        assert (code, "'int3'" in err) == (1, True)
