import asyncio
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree.bench import workload as workload_module
from ddtree.bench.spec import BenchSpec, ChatFormat
from ddtree.bench.spec_file import parse_spec
from ddtree.bench.tasks import kinds_of, read_tasks, shipped_tasks
from ddtree.bench.workload import Prompt, PromptSource, Tokenize, prompts_sha256
from ddtree.errors import ConfigError

HUMANEVAL = tuple(f"def humaneval_{n}(x):\n    return" for n in range(30))
LONG_HUMANEVAL = "def long(x):\n" + "    x = x + 1\n" * 60
CHAT = ChatFormat("<|user|> ", " <|assistant|>")


def spec_of(workload: str, **changes: object) -> BenchSpec:
    lines = "model: m\ncontexts: [own]\n" if workload.startswith("file:") else "model: m\n"
    text = lines + "concurrencies: [1]\n" + f"workload: {workload!r}\n"
    if "own" not in text:
        text += "contexts: [60]\n"
    return dataclasses.replace(parse_spec(text, "s"), **changes)  # type: ignore[arg-type]


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
    tokenize: Tokenize,
    kind: str | BenchSpec,
    sizes: list[tuple[int, int]],
    seed: int = 0,
    humaneval: tuple[str, ...] = HUMANEVAL,
) -> list[tuple[Prompt, ...]]:
    spec = spec_of(kind) if isinstance(kind, str) else kind

    async def work() -> list[tuple[Prompt, ...]]:
        source = PromptSource(tokenize, kinds_of(spec, lambda: humaneval, CHAT), seed)
        return [await source.take(context, number) for context, number in sizes]

    return asyncio.run(work())


@pytest.mark.parametrize("kind", ["code", "document", "mixed", "humaneval", "chat"])
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


@pytest.mark.parametrize("kind", ["code", "document"])
def test_ends_in_a_whole_task(kind: str) -> None:
    tokenizer = FakeTokenizer()
    (prompts,) = take(tokenizer, kind, [(120, 5)])
    for prompt in prompts:
        text = tokenizer.text_of(prompt)
        assert any(text.endswith(f"\n\n{task.content}") for task in shipped_tasks(kind))


def test_mixed_alternates() -> None:
    (prompts,) = take(FakeTokenizer(), "mixed", [(100, 6)])
    assert [prompt.id.split("-")[0] for prompt in prompts] == ["code", "document"] * 3


@pytest.mark.parametrize("kind", ["code", "document", "mixed"])
def test_filler_never_overlaps(kind: str) -> None:
    unique.count = 0  # type: ignore[attr-defined]
    groups = take(unique, kind, [(60, 10), (500, 10)])
    tokens = [token for prompts in groups for prompt in prompts for token in prompt.token_ids]
    assert len(set(tokens)) == len(tokens)


def test_tasks_are_many_and_distinct() -> None:
    code = shipped_tasks("code")
    assert len(set(code)) == len(code) >= 40
    for name in ("document", "chat"):
        tasks = shipped_tasks(name)
        assert len(set(tasks)) == len(tasks) >= 20
    for task in code:
        compile(f"{task.content}    pass\n", "task", "exec")


def test_chat_stands_between_the_template_s_ends() -> None:
    tokenizer = FakeTokenizer()
    (prompts,) = take(tokenizer, "chat", [(120, 4)])
    for prompt in prompts:
        text = tokenizer.text_of(prompt)
        assert text.startswith(CHAT.before)
        assert any(text.endswith(f"\n\n{t.content}{CHAT.after}") for t in shipped_tasks("chat"))


def test_chat_without_a_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"workload chat: .* give chat"):
        kinds_of(spec_of("chat"), lambda: (), None)
    own = spec_of("chat", chat=ChatFormat("<", ">"))
    assert kinds_of(own, lambda: (), CHAT)[0].before == "<"


def test_humaneval_prompts_that_do_not_fit_are_passed_over() -> None:
    tokenizer = FakeTokenizer()
    (prompts,) = take(tokenizer, "humaneval", [(60, 8)], humaneval=(LONG_HUMANEVAL, *HUMANEVAL))
    assert not any(tokenizer.text_of(p).endswith(LONG_HUMANEVAL) for p in prompts)
    with pytest.raises(ConfigError, match=r"contexts: 60 tokens leave no room before a task of"):
        take(tokenizer, "humaneval", [(60, 1)], humaneval=(LONG_HUMANEVAL,))


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    lines = [{"prompt": "first of mine"}, {"token_ids": [3, 1, 4, 1, 5], "id": "pi"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_own_prompts_keep_their_length(own_file: Path) -> None:
    tokenizer = FakeTokenizer()
    (prompts,) = take(tokenizer, spec_of(f"file:{own_file}"), [(0, 2)])
    assert tokenizer.text_of(prompts[0]) == "first of mine"
    assert prompts[1].token_ids == (3, 1, 4, 1, 5)
    assert [p.id for p in prompts] == ["file-0000-own", "pi-0001-own"]


def test_own_prompts_behind_filler(own_file: Path) -> None:
    tokenizer = FakeTokenizer()
    (prompts,) = take(tokenizer, spec_of(f"file:{own_file}"), [(50, 2)])
    assert {len(p.token_ids) for p in prompts} == {50}
    assert tokenizer.text_of(prompts[0]).endswith("\n\nfirst of mine")
    assert prompts[1].token_ids[-5:] == (3, 1, 4, 1, 5)


def test_own_prompts_are_used_once_unless_declared(own_file: Path) -> None:
    spec = spec_of(f"file:{own_file}")
    with pytest.raises(ConfigError, match=r"prompts are used up; .* reuse_prompts: true"):
        take(FakeTokenizer(), spec, [(0, 3)])
    again = dataclasses.replace(spec, reuse_prompts=True)
    (prompts,) = take(FakeTokenizer(), again, [(0, 6)])
    assert len({p.sha256 for p in prompts}) == 2
    assert len({p.id for p in prompts}) == 6


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 2: not JSON"),
        ("[]", r"line 2: expected an object, got list"),
        ('{"prompt": "a", "promt": 1}', r"line 2: unknown key 'promt'; known are prompt"),
        ("{}", r"line 2: give `prompt` or `token_ids`, one of them"),
        ('{"prompt": "a", "token_ids": [1]}', r"one of them"),
        ('{"prompt": ""}', r"expected a text that isn't empty, got ''"),
        ('{"prompt": 3}', r"expected a text that isn't empty, got 3"),
        ('{"token_ids": [1, true]}', r"token_ids: expected a list of integers"),
        ('{"token_ids": []}', r"token_ids: expected a list of integers"),
        ('{"token_ids": [-1]}', r"token_ids: expected a list of integers of at least 0"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message):
        read_tasks(path)


def test_a_file_of_nothing_or_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_tasks(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        read_tasks(tmp_path / "empty.jsonl")


def test_context_too_short_for_a_task() -> None:
    with pytest.raises(ConfigError, match="contexts: 5 tokens leave no room"):
        take(FakeTokenizer(), "code", [(5, 1)])


def test_repeated_prompt_is_refused() -> None:
    async def constant(text: str) -> tuple[int, ...]:
        return (7,) * len(text.split())

    with pytest.raises(ConfigError, match="prompts of 80 tokens repeat"):
        take(constant, "code", [(80, 100)])


def test_used_filler_comes_again_from_other_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_module, "_MODULES", ("bisect",))
    (prompts,) = take(FakeTokenizer(), "code", [(500, 60)])
    starts = {prompt.token_ids[:60] for prompt in prompts}
    assert len(starts) == 60


def test_filler_shorter_than_a_prompt_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_module, "_MODULES", ("bisect",))
    with pytest.raises(ConfigError, match="all filler together is shorter than"):
        take(FakeTokenizer(), "code", [(20_000, 1)])


def test_filler_without_an_unused_place_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def three(text: str) -> tuple[int, ...]:
        return (0, 1, 2) if text == "filler" else (7,)

    monkeypatch.setattr(workload_module, "_texts", lambda _kind, _seed: iter(["filler"]))
    with pytest.raises(ConfigError, match="filler is used up"):
        take(three, "code", [(2, 4)])
    (prompts,) = take(three, "code", [(2, 3)])
    assert [p.token_ids for p in prompts] == [(0, 7), (1, 7), (2, 7)]


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
