"""Small suite files of the tests' own."""

import base64
import gzip
import json
import pickle
import zlib
from typing import Any


def json_lines_of(*records: dict[str, Any]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def zipped(data: bytes) -> bytes:
    return gzip.compress(data)


def packed(value: object) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def humaneval_record(**changes: Any) -> dict[str, Any]:
    return {
        "task_id": "HumanEval/0",
        "prompt": 'from typing import List\n\n\ndef total(x: List[int]) -> int:\n    """Sum."""\n',
        "entry_point": "total",
        "canonical_solution": "    return sum(x)\n",
        "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n",
    } | changes


def evalplus_record(**changes: Any) -> dict[str, Any]:
    return {
        "task_id": "Mbpp/1",
        "prompt": '"""\nWrite a function to add.\nassert add(1, 2) == 3\n"""\n',
        "entry_point": "add",
        "canonical_solution": "\ndef add(a, b):\n    return a + b\n",
        "contract": "",
        "base_input": [[1, 2]],
        "plus_input": [[0.5, 0.25]],
        "atol": 0,
    } | changes


def mbpp_record(**changes: Any) -> dict[str, Any]:
    return {
        "source_file": "a notebook",
        "task_id": 2,
        "prompt": "Write a function to find the shared elements.",
        "code": "def shared(a, b):\n    return tuple(set(a) & set(b))",
        "test_imports": ["import math"],
        "test_list": [
            "assert set(shared((1, 2), (2, 3))) == {2}",
            "assert set(shared((1,), (math.floor(1.5),))) == {1}",
        ],
    } | changes


def stdin_record(**changes: Any) -> dict[str, Any]:
    return {
        "question_id": "abc1_a",
        "question_content": "Print the sum.\n",
        "contest_date": "2025-02-01T00:00:00",
        "starter_code": "",
        "public_test_cases": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}]),
        "private_test_cases": packed(
            json.dumps([{"input": "4 5\n", "output": "9\n", "testtype": "stdin"}])
        ),
        "metadata": "{}",
    } | changes


def functional_record(**changes: Any) -> dict[str, Any]:
    case = {"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}
    return {
        "question_id": "3708",
        "question_content": "Shift the numbers.",
        "contest_date": "2025-01-11T18:30:00",
        "starter_code": "class Solution:\n    def shift(self, xs: List[int], by: int):\n        ",
        "public_test_cases": json.dumps([case]),
        "private_test_cases": json.dumps([case]),
        "metadata": json.dumps({"func_name": "shift"}),
    } | changes


def private_record(**changes: Any) -> dict[str, Any]:
    return {
        "id": "one",
        "prompt": "Write add(a, b).",
        "language": "python",
        "entry_point": "add",
        "tests": "assert add(1, 2) == 3\n",
    } | changes
