"""docs/endpoints.md says what the code does."""

import re
from pathlib import Path

import pytest
import yaml

from ddtree.endpoint.commands import ServerAsk, arm_command
from ddtree.endpoint.config import _EndpointFile, parse_endpoint
from ddtree.endpoint.kinds import KINDS, dialect_of
from ddtree.records.arms import Arm

PAGE = (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text()
ASK = ServerAsk("m", "bfloat16", "127.0.0.1", 8000, 8, "D", None, 8)


def table(heading: str) -> list[list[str]]:
    """Cells of the table that starts with `heading`."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n", maxsplit=1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_examples_can_be_used() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    kinds = [parse_endpoint(yaml.safe_load(text)["endpoint"]).kind for text in examples]
    assert kinds == ["sglang", "openai"]


def test_the_keys_are_all_there() -> None:
    rows = table("| key | meaning |")[2:]
    assert [row[0].strip("`") for row in rows] == list(_EndpointFile.model_fields)


def test_the_kinds_are_all_there_with_their_routes() -> None:
    rows = table("| | `ddtree` |")
    assert [cell.strip("`") for cell in rows[0][1:]] == list(KINDS)
    named = {row[0]: dict(zip(KINDS, row[1:], strict=True)) for row in rows[2:]}
    for kind in KINDS:
        dialect = dialect_of(kind)
        reset = dialect.cache_reset
        cache = f"`{reset}`" if reset else "can't be emptied"
        assert named["prefix cache"][kind] == (cache if dialect.has_prefix_cache else "has none")


@pytest.mark.parametrize("arm", [Arm("chain"), Arm("ddtree", 16, 4)], ids=str)
def test_the_options_of_a_launch_are_those_of_the_page(arm: Arm) -> None:
    (row,) = [r for r in table("| arm | SGLang |") if r[0] == f"`{arm.method}`"]
    line = arm_command(parse_endpoint({"kind": "sglang"}), arm, ASK)
    flags = [word for word in line[line.index("--dtype") + 4 :] if word.startswith("--")]
    assert set(re.findall(r"--[a-z-]+", row[1])) == set(flags)
