"""The command on the real model, and on a real server."""

import json

import pytest

from ddtree.cli import main
from ddtree.cli.verify_table import table
from ddtree.verify.report import VerifyReport


def run(capsys, monkeypatch, *arguments):
    """Exit status and the two streams."""
    monkeypatch.setattr("sys.argv", ["ddtree", "verify", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    shown = capsys.readouterr()
    return stopped.value.code, shown.out, shown.err


@pytest.mark.model
def test_smollm2_is_lossless(smollm2, capsys, monkeypatch, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"def add(a, b):"\n{"prompt": "The sky is"}\n')
    common = ("--prompts", str(prompts), "--max-tokens", "6", "--concurrency", "2")
    code, out, _ = run(
        capsys,
        monkeypatch,
        *common,
        *("--dtype", "float32", "--budget", "8", "--temperature", "0.8", "--json"),
    )
    found = json.loads(out)
    assert (code, found["verdict"]) == (0, "exact")
    (result,) = found["results"]
    assert result["sampling"]["temperature"] == 0.8
    assert [row["arm"]["method"] for row in result["rows"]] == ["ar", "ar", "chain", "ddtree"]
    assert all(row["losslessness"]["tokens"] for row in result["rows"])
    assert result["control"]["rows"] == 9
    assert result["law"]["positions"] == 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--top-p", "0.9"), "--temperature"),
        (("--temperature", "-1"), "temperature"),
        (("--temperature", "1", "--top-p", "0"), "top_p"),
        (("--concurrency", "0"), "--concurrency"),
        (("--budget", "0"), "budget"),
        (("--prompts", "/nonexistent"), "can't be read"),
        (("--draft-window", "wide"), "--draft-window"),
        (("--url", "http://127.0.0.1:9"), "127.0.0.1:9"),
        (("--url", "http://127.0.0.1:9", "--device", "cuda"), "--device"),
        (("--url", "http://127.0.0.1:9", "--kind", "tgi"), "--kind"),
        (("--url", "http://127.0.0.1:9", "--kind", "vllm"), "--baseline-url"),
        (("--url", "http://127.0.0.1:9", "--baseline-url", "http://127.0.0.1:9"), "as well"),
        (("--kind", "vllm"), "--url"),
        (("--logit-bias", "5:1"), "--logit-bias"),
        (("--logit-bias", "5=200"), "logit_bias[5]: got 200"),
        (("--bad-word", ""), "bad_words"),
        (("--min-tokens", "-1"), "min_tokens"),
        (("--stop-token-id", "-1"), "stop_token_ids"),
        (("--temperature", "inf"), "got inf, expected a finite number of at least 0"),
        (("--temperature", "0", "--top-p", "0.5"), "--top-p"),
    ],
)
def test_refused(capsys, monkeypatch, arguments, words):
    code, out, err = run(capsys, monkeypatch, *arguments)
    assert code == 1
    assert out == ""
    assert words in err


def test_table_of_nothing():
    assert table(VerifyReport("float32", 9, ())).endswith("gives no scores by which to judge them")
