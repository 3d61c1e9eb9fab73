import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree.bench import workload as workload_module
from ddtree.bench.workload import Prompt, PromptSource, Tokenize, load_tasks, prompts_sha256
from ddtree.errors import ConfigError


class FakeTokenizer:
    """Splits into words and spaces; ids in order of first sight; keeps what it was given."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.texts: list[str] = []

    async def __call__(self, text: str) -> tuple[int, ...]:
        self.texts.append(text)
        pieces = re.findall(r"\w+|\W", text)
        return tuple(self.ids.setdefault(piece, len(self.ids)) for piece in pieces)

    def text_of(self, prompt: Prompt) -> str:
        words = {number: piece for piece, number in self.ids.items()}
        return "".join(words[i] for i in prompt.token_ids)


async def unique(text: str) -> tuple[int, ...]:
    """Every token of every text has an id of its own."""
    unique.count += len(text.split())  # type: ignore[attr-defined]
    return tuple(range(unique.count - len(text.split()), unique.count))  # type: ignore[attr-defined]


def take(
    tokenize: Tokenize, kind: str, sizes: list[tuple[int, int]], seed: int = 0
) -> list[tuple[Prompt, ...]]:
    async def work() -> list[tuple[Prompt, ...]]:
        source = PromptSource(tokenize, kind, seed)  # type: ignore[arg-type]
        return [await source.take(context, number) for context, number in sizes]

    return asyncio.run(work())


@pytest.mark.parametrize("kind", ["code", "text", "mixed"])
def test_exact_lengths_distinct_and_reproducible(kind: str) -> None:
    sizes = [(80, 30), (1024, 20), (4096, 3)]
    first = take(FakeTokenizer(), kind, sizes)
    for (context, number), prompts in zip(sizes, first, strict=True):
        assert len(prompts) == number
        assert {len(prompt.token_ids) for prompt in prompts} == {context}
    everything = [prompt for prompts in first for prompt in prompts]
    assert len({prompt.sha256 for prompt in everything}) == len(everything) == 53
    assert len({prompt.id for prompt in everything}) == len(everything)
    assert take(FakeTokenizer(), kind, sizes) == first
    assert take(FakeTokenizer(), kind, sizes, seed=1)[0] != first[0]


@pytest.mark.parametrize("kind", ["code", "text"])
def test_ends_in_a_whole_task(kind: str) -> None:
    tokenizer = FakeTokenizer()
    (prompts,) = take(tokenizer, kind, [(120, 5)])
    for prompt in prompts:
        text = tokenizer.text_of(prompt)
        assert any(text.endswith("\n\n" + task) for task in load_tasks(kind))  # type: ignore[arg-type]


def test_mixed_alternates() -> None:
    (prompts,) = take(FakeTokenizer(), "mixed", [(100, 6)])
    assert [prompt.id.split("-")[0] for prompt in prompts] == ["code", "text"] * 3


@pytest.mark.parametrize("kind", ["code", "text", "mixed"])
def test_filler_never_overlaps(kind: str) -> None:
    unique.count = 0  # type: ignore[attr-defined]
    groups = take(unique, kind, [(60, 10), (500, 10)])
    tokens = [token for prompts in groups for prompt in prompts for token in prompt.token_ids]
    assert len(set(tokens)) == len(tokens)


def test_tasks_are_many_and_distinct() -> None:
    code, text = load_tasks("code"), load_tasks("text")
    assert len(set(code)) == len(code) >= 40
    assert len(set(text)) == len(text) >= 20
    for task in code:
        compile(task + "    pass\n", "task", "exec")


def test_context_too_short_for_a_task() -> None:
    with pytest.raises(ConfigError, match="contexts: 5 tokens leave no room"):
        take(FakeTokenizer(), "code", [(5, 1)])


def test_repeated_prompt_is_refused() -> None:
    async def constant(text: str) -> tuple[int, ...]:
        return (7,) * len(text.split())

    with pytest.raises(ConfigError, match="prompts of 80 tokens repeat"):
        take(constant, "code", [(80, 100)])


def test_used_up_filler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_module, "_MODULES", ("bisect",))
    with pytest.raises(ConfigError, match="filler is used up"):
        take(FakeTokenizer(), "code", [(2000, 50)])


def test_missing_standard_library_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere: Callable[[str], str] = lambda _: str(tmp_path)  # noqa: E731
    monkeypatch.setattr(workload_module.sysconfig, "get_path", nowhere)
    with pytest.raises(ConfigError, match="source of its standard library"):
        take(FakeTokenizer(), "code", [(100, 1)])


def test_every_module_of_the_filler_exists() -> None:
    folder = Path(workload_module.sysconfig.get_path("stdlib"))
    missing = [m for m in workload_module._MODULES if not (folder / f"{m}.py").is_file()]
    assert missing == []


def test_hash_over_prompts_depends_on_order() -> None:
    (prompts,) = take(FakeTokenizer(), "code", [(80, 3)])
    assert prompts_sha256(prompts) != prompts_sha256(prompts[::-1])
