"""What an evaluation asks for: refused where it makes no sense, kept in a file, never mixed up."""

import dataclasses
from typing import Any

import pytest
import yaml

from ddtree.errors import ConfigError
from ddtree.evals import spec as specification
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from evals.eval_parts import AR, CHAIN, TREE, WARM, spec_of

FULL = {
    "arms": (AR, Arm("chain", draft_window="full"), Arm("ddtree", 16, 4, draft_window=256)),
    "thinking": False,
    "template": (("reasoning_effort", "low"), ("tools", [{"name": "run"}]), ("deep", None)),
    "sampling": Sampling(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1),
    "samples": 3,
    "limit": 5,
    "noise": True,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ()}, "arms: the first must be ar"),
        ({"arms": (TREE, AR)}, "arms: the first must be ar"),
        ({"arms": (AR, TREE, CHAIN, TREE)}, "arms: one comes twice"),
        ({"arms": (AR, AR)}, "arms: one comes twice"),
        ({"samples": 0}, "samples: expected at least 1, got 0"),
        ({"max_tokens": 0}, "max_tokens: expected at least 1, got 0"),
        ({"concurrency": -2}, "concurrency: expected at least 1, got -2"),
        ({"samples": 2}, "samples: greedy answers are all the same, got 2"),
        (
            {"samples": 2, "sampling": Sampling(repetition_penalty=1.1)},
            "samples: greedy answers are all the same, got 2",
        ),
        ({"prompting": "chats"}, "prompting: got 'chats', expected chat or completion"),
        ({"prompting": "completion", "thinking": True}, "prompting: a completion has no chat"),
        ({"prompting": "completion", "thinking": False}, "prompting: a completion has no chat"),
        ({"prompting": "completion", "template": (("a", 1),)}, "prompting: a completion has no"),
        (
            {"thinking": True, "template": (("enable_thinking", False),)},
            "template: enable_thinking is what thinking sets",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"arms": (AR,)},
        {"arms": (AR, TREE, Arm("ddtree", 8, 4, draft_window=64))},
        {"samples": 2, "sampling": WARM},
        {"prompting": "completion"},
        {"sampling": Sampling(repetition_penalty=1.1)},
    ],
)
def test_what_makes_sense_is_not(changes: dict[str, Any]) -> None:
    assert spec_of(**changes).arms[0] == AR


@pytest.mark.parametrize("changes", [{}, FULL], ids=["plain", "full"])
def test_a_dictionary_and_a_file_keep_everything(changes: dict[str, Any], tmp_path) -> None:
    spec = spec_of(**changes)
    assert specification.EvalSpec.from_dict(spec.to_dict()) == spec
    folder = tmp_path / "made" / "if need be"
    specification.claim(folder, spec)
    assert specification.read_spec(folder) == spec
    names = {field.name for field in dataclasses.fields(spec)}
    text = (folder / specification.SPEC_FILE).read_text()
    assert set(yaml.safe_load(text)) == names


def test_the_thinking_switch_is_a_variable() -> None:
    template = (("reasoning_effort", "low"),)
    assert spec_of(template=template).variables == template
    assert spec_of(template=template, thinking=False).variables == (
        *template,
        ("enable_thinking", False),
    )
    assert spec_of(thinking=True).variables == (("enable_thinking", True),)


def test_the_same_evaluation_goes_on(tmp_path) -> None:
    specification.claim(tmp_path, spec_of(**FULL))
    before = (tmp_path / specification.SPEC_FILE).read_bytes()
    specification.claim(tmp_path, spec_of(**FULL))
    assert (tmp_path / specification.SPEC_FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 8}, "seed: 7, now 8"),
        ({"limit": None}, "limit: 5, now null"),
        ({"thinking": True}, "thinking: false, now true"),
        ({"suite_sha256": "1" * 64}, f'suite_sha256: "{"0" * 64}", now "{"1" * 64}"'),
        ({"arms": (AR, TREE)}, r'arms: .*"budget": 16.*, now \[{"method": "ar"}, .*"budget": 8'),
        ({"template": ()}, 'template: .*"reasoning_effort": "low".*, now {}'),
        ({"sampling": WARM}, 'sampling: .*"top_k": 20.*, now .*"temperature": 0.9'),
        ({"model": "other", "max_tokens": 9}, 'model: "mock", now "other"; max_tokens: 12, now 9'),
    ],
)
def test_another_evaluation_is_refused(changes: dict[str, Any], named: str, tmp_path) -> None:
    spec = spec_of(**FULL)
    specification.claim(tmp_path, spec)
    with pytest.raises(ConfigError, match=named) as found:
        specification.claim(tmp_path, dataclasses.replace(spec, **changes))
    assert str(tmp_path) in str(found.value)
    untouched = set(specification.read_spec(tmp_path).to_dict()) - set(changes)
    assert not [name for name in untouched if f"{name}: " in str(found.value)]
    assert specification.read_spec(tmp_path) == spec


def without(name: str) -> str:
    fields = spec_of().to_dict()
    del fields[name]
    return yaml.safe_dump(fields)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n- list\n",
        "just words\n",
        "suite: [open\n",
        without("arms"),
        without("suite"),
        yaml.safe_dump(spec_of().to_dict() | {"unknown": 1}),
        yaml.safe_dump(spec_of().to_dict() | {"arms": [{"method": "ar", "nodes": 3}]}),
        yaml.safe_dump(spec_of().to_dict() | {"arms": 3}),
        yaml.safe_dump(spec_of().to_dict() | {"template": ["a"]}),
        yaml.safe_dump(spec_of().to_dict() | {"samples": "many"}),
        b"suite: \xff\xfe\n",
    ],
)
def test_a_broken_file_is_named(text: str | bytes, tmp_path) -> None:
    path = tmp_path / specification.SPEC_FILE
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=r"eval\.yaml: no evaluation can be read there"):
        specification.read_spec(tmp_path)
    with pytest.raises(ConfigError, match=r"eval\.yaml: no evaluation can be read there"):
        specification.claim(tmp_path, spec_of())


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"eval\.yaml: no evaluation can be read there"):
        specification.read_spec(tmp_path)
