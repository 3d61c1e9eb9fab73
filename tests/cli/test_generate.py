"""`ddtree generate` as a person or a script runs it."""

import json
import re
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
def test_a_seed_gives_the_same_tokens_with_every_method(smollm2):
    fields = ["--max-tokens", "16", "--dtype", "float32", "--temperature", "0.8", "--seed", "3"]
    fields += ["--top-p", "0.95", "--repetition-penalty", "1.1", "--json", "--logprobs", "2"]
    found = {}
    for method in ("ar", "ddtree"):
        done = run(PROMPT, "--method", method, *fields)
        assert done.returncode == 0, done.stderr
        found[method] = json.loads(done.stdout)
    ar, tree = found["ar"], found["ddtree"]
    assert ar["token_ids"] == tree["token_ids"]
    assert (tree["temperature"], tree["seed"]) == (0.8, 3)
    assert [entry["token_id"] for entry in tree["logprobs"]] == tree["token_ids"]
    for one, other in zip(ar["logprobs"], tree["logprobs"], strict=True):
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-3)
        assert len(one["top"]) == 2


@pytest.mark.model
def test_a_sampled_output_can_be_had_again(smollm2):
    """By the seed that the account names, drawn where none was given."""
    fields = [PROMPT, "--max-tokens", "8", "--dtype", "float32", "--temperature", "1.5"]
    first = run(*fields)
    seed = re.search(r", seed (\d+)$", first.stderr.strip())
    assert seed is not None, first.stderr
    again = run(*fields, "--seed", seed[1])
    assert again.stdout == first.stdout
    assert f"seed {seed[1]}" in again.stderr


@pytest.mark.model
def test_text_streams_and_the_account_goes_to_stderr(smollm2):
    done = run("--max-tokens", "8", "--chat", stdin="Say hello.")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "[ddtree] 8 tokens" in done.stderr
    assert "seed" not in done.stderr


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
        (["x", "--temperature", "-0.7"], "temperature"),
        (["x", "--top-p", "0.9"], "--top-p: has no effect at temperature 0; give --temperature"),
        (["x", "--top-k", "5"], "--top-k"),
        (["x", "--min-p", "0.1", "--temperature", "0"], "--min-p"),
        (["x", "--seed", "1"], "--seed"),
        (["x", "--temperature", "0.7", "--top-p", "1.5"], "top_p"),
        (["x", "--repetition-penalty", "0"], "repetition_penalty"),
        (["x", "--logprobs", "2"], "--logprobs: is printed with --json only"),
        (["x", "--json", "--logprobs", "21"], "logprobs"),
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
