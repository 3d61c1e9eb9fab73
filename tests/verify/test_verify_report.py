"""Verdict, headline and exit status."""

import json
from dataclasses import replace

import pytest

from ddtree.errors import ConfigError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.records.summary import Losslessness
from ddtree.verify.law import LawResult
from ddtree.verify.prompts import PROMPTS, read_prompts
from ddtree.verify.report import Row, SamplingResult, VerifyReport

TREE = Arm("ddtree", 8, 4)
EXACT = Losslessness("exact", 4, 4, tokens=100)
NEAR = Losslessness(
    "near-ties", 4, 3, near_ties=1, tokens=100, near_tie_tokens=2, largest_gap_ulps=1.5
)
BROKEN = Losslessness("not-lossless", 4, 2, bugs=2, largest_gap_ulps=90.0)
OPEN = Losslessness("unclassified", 4, 3)
PASSED = LawResult(100, 0.1, 0.27, 0.27)
FAILED = LawResult(100, 0.5, 1e-21, 0.27)


def row(found, concurrency=1, arm=TREE):
    return Row(arm, concurrency, found, 2.0, None, ())


def report(*results):
    return VerifyReport("bfloat16", 9, results)


def result(*rows, sampling=None, law=None):
    return SamplingResult(sampling or Sampling(), None, rows, law)


@pytest.mark.parametrize(
    ("found", "verdict", "status", "words"),
    [
        ((EXACT, EXACT), "exact", 0, "lossless: exact (8 outputs)"),
        ((EXACT, NEAR), "near-ties", 0, "2 of 200 tokens, largest gap 1.5 bf16 ULP"),
        ((OPEN, NEAR), "unclassified", 4, "2 of 8 outputs differ"),
        ((OPEN, BROKEN), "not-lossless", 3, "NOT lossless (ddtree(8,4), greedy, 1 at once: 2 bugs"),
    ],
)
def test_the_worst_row_decides(found, verdict, status, words):
    whole = report(result(*map(row, found)))
    assert (whole.verdict, whole.exit_status) == (verdict, status)
    assert words in whole.headline
    assert json.loads(json.dumps(whole.to_dict()))["verdict"] == verdict


def test_exact_without_scores_says_what_was_not_checked():
    whole = report(replace(result(row(EXACT)), scored=False))
    assert whole.verdict == "exact"
    assert "all arms share would not show" in whole.headline


def test_nothing_compared_is_not_lossless_by_default():
    assert report(result()).verdict == "unclassified"
    assert report().verdict == "unclassified"


def test_text_of_another_distribution_is_not_lossless():
    sampled = Sampling(0.7)
    whole = report(result(row(EXACT), sampling=sampled, law=FAILED))
    assert whole.verdict == "not-lossless"
    assert "not distributed as the target's" in whole.headline
    assert report(result(row(EXACT), sampling=sampled, law=PASSED)).verdict == "exact"


def test_hints_across_rows():
    sampled = result(row(BROKEN), sampling=Sampling(0.7))
    assert "only sampled outputs" in report(result(row(EXACT)), sampled).hints[0]
    assert "only in batches" in report(result(row(EXACT), row(BROKEN, 4))).hints[0]
    # The baseline alone says nothing of an arm that was only tried in batches.
    alone = row(EXACT, arm=Arm("ar"))
    assert report(result(alone, row(BROKEN, 4))).hints == ()
    assert report(result(row(BROKEN), row(BROKEN, 4))).hints == ()
    assert report(result(replace(row(EXACT)))).hints == ()


def test_prompt_files(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('"plain"\n\n{"prompt": "in an object", "id": 3}\n')
    assert read_prompts(path) == ("plain", "in an object")
    assert all(PROMPTS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no prompt"),
        ("{", "line 1: not JSON"),
        ('"a"\n3\n', "line 2"),
        ('{"x": 1}\n', "line 1"),
    ],
)
def test_unusable_prompt_files(tmp_path, text, words):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_prompts(path)
    with pytest.raises(ConfigError, match="can't be read"):
        read_prompts(tmp_path / "absent")
