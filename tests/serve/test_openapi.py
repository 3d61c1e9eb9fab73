"""The OpenAPI document is true: what it allows and forbids, and what comes back."""

import contextlib
import os
import subprocess
import sys

import pytest
from sampled_checks import CHAT, COMPLETIONS
from serve_calls import post
from tiny_server import byte_tokenizer, served, tiny_engine

from ddtree.engine import EngineConfig
from ddtree.serve import answers
from mutations.planting import Mutation, planted

# What a schema can't say: which values fit depends on the model (its context, its vocabulary) and
# on each other (n and temperature). So not everything that fits it is served there.
SETTINGS = """
[[operations]]
include-name = [
  "POST /v1/completions", "POST /v1/chat/completions", "POST /v1/replay", "POST /detokenize",
]
checks.positive_data_acceptance.enabled = false
"""


@contextlib.contextmanager
def small_server():
    """Answers end soon."""
    config = EngineConfig(slots=4, max_context=24, prefill_chunk=16)
    with served(tiny_engine(config), byte_tokenizer()) as url:
        yield url


def conform(url, folder, *options):
    """What schemathesis finds: every field of every call at its borders and beyond them."""
    (folder / "settings.toml").write_text(SETTINGS)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", "settings.toml", "run"]
    command += [f"{url}/openapi.json", "--phases", "coverage", "--mode", "all", "--seed", "1"]
    command += ["--continue-on-failure", "--no-color", *options]
    return subprocess.run(
        command, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=300
    )


def test_the_server_does_what_its_document_says(tmp_path):
    with small_server() as url:
        found = conform(url, tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_document_that_is_not_true_is_seen(tmp_path):
    """A status that it doesn't have, and an answer of another type."""
    status = ("_OF_A_BODY = (400, 401,", "_OF_A_BODY = (401,")
    typed = ("    count: int\n", "    count: str\n")
    with (
        planted(Mutation("typed", "ddtree.serve.answers", (typed,), ())),
        planted(Mutation("status", "ddtree.serve.app", (status,), ())),
        small_server() as url,
    ):
        found = conform(url, tmp_path, "--include-path", "/tokenize")
    assert found.returncode == 1, found.stdout + found.stderr
    assert "Response violates schema" in found.stdout
    assert "Undocumented" in found.stdout, found.stdout


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_answers_fit_their_models(tiny, path):
    extra = {"return_stats": True, "return_token_ids": True, "n": 2}
    if path == CHAT:
        body = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2}
        model = answers.ChatCompletion
    else:
        body, model = {"prompt": "ab", "logprobs": 2}, answers.Completion
    for fields in (body, body | extra, body | extra | {"n": 1}):
        model.model_validate(post(tiny.url, path, fields | {"max_tokens": 4}), strict=True)
