"""`ddtree generate` as a person or a script runs it."""

import json
import subprocess
import sys

import pytest

PROMPT = "def is_even(n):\n"


def run(*arguments, stdin=None):
    return subprocess.run(
        [sys.executable, "-m", "ddtree", "generate", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=120,
    )


@pytest.mark.model
def test_json_and_methods_agree(smollm2):
    results = {}
    for method in (["ar"], ["chain"], ["ddtree", "--budget", "8", "--topk", "4"]):
        done = run(
            PROMPT, "--json", "--max-tokens", "16", "--dtype", "float32", "--method", *method
        )
        assert done.returncode == 0, done.stderr
        results[method[0]] = json.loads(done.stdout)
    assert {
        *("text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason", "rounds"),
        *("acceptance_length", "accepted_histogram", "stage_seconds", "decode_tokens_per_s"),
    } <= results["ddtree"].keys()
    assert results["ar"]["rounds"] == 15 > results["ddtree"]["rounds"]
    assert len({tuple(r["token_ids"]) for r in results.values()}) == 1
    assert len({r["text"] for r in results.values()}) == 1


@pytest.mark.model
def test_text_streams_and_the_account_goes_to_stderr(smollm2):
    done = run("--max-tokens", "8", "--chat", stdin="Say hello.")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "[ddtree] 8 tokens" in done.stderr


@pytest.mark.model
def test_show_tree_marks_the_accepted_path(smollm2):
    done = run(PROMPT, "--max-tokens", "8", "--show-tree")
    assert done.returncode == 0, done.stderr
    rounds = [line for line in done.stdout.splitlines() if line.startswith("round ")]
    marked = [line for line in done.stdout.splitlines() if "✓" in line]
    accepted = sum(int(line.split(": ")[1].split()[0]) for line in rounds)
    assert rounds
    assert len(marked) == accepted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--temperature", "0.7"], "temperature"),
        (["x", "--top-p", "0.9"], "--top-p"),
        (["x", "--seed", "1"], "--seed"),
        (["x", "--method", "magic"], "speculation.method"),
        (["x", "--method", "chain", "--budget", "3"], "speculation.budget"),
        (["x", "--draft-window", "wide"], "--draft-window"),
        (["x", "--max-tokens", "0"], "max_tokens"),
        (["x", "--show-tree", "--json"], "exclude each other"),
        ([""], "prompt is empty"),
        (["x", "--model", "/nowhere"], "/nowhere"),
        (["x", "--dtype", "int4"], "dtype"),
    ],
    ids=str,
)
def test_refusals(arguments, message, smollm2):
    done = run(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.model
def test_no_drafter_means_ar(smollm2):
    done = run("x", "--drafter", "none", "--json", "--max-tokens", "2")
    assert json.loads(done.stdout)["method"] == "ar"
    done = run("x", "--drafter", "none", "--method", "chain")
    assert done.returncode == 1
    assert "needs a drafter" in done.stderr
