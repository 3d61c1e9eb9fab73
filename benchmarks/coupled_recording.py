"""Recordings for `coupled_drafting.py`: what the drafter says at every position of sampled texts.

The engine decodes with the drafter at work and all of its drafts thrown away, so that each round
yields one token and every position is a root; the texts are those of any other method. Prompts for
fitting and for testing share neither HumanEval tasks nor chat topics.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from common import humaneval_prompts, progress

from ddtree.engine import SamplingParams, Speculation
from ddtree.models.text import encode_chat

POOL = 1024  # best tokens kept of each distribution; the engine looks at about as many
TOPICS = {
    "fit": (
        "a lighthouse keeper",
        "the water cycle",
        "hash tables",
        "the city of Lisbon",
        "training for a marathon",
        "chess openings",
        "bread baking",
        "the French Revolution",
    ),
    "test": (
        "a lost dog",
        "photosynthesis",
        "binary search trees",
        "the Sahara desert",
        "learning the piano",
        "solar panels",
        "vegetable soup",
        "the Roman Empire",
    ),
}
TASKS = {
    "fit": (
        "Write a short story about {}.",
        "Explain {} to a ten-year-old.",
        "List seven interesting facts about {}.",
        "Write an email to a colleague about {}.",
        "Give me step-by-step advice on {}.",
    ),
    "test": (
        "Write a poem about {}.",
        "Summarise what is important about {}.",
        "Write a dialogue between two friends about {}.",
        "What are common mistakes people make about {}?",
        "Write a Python function that has something to do with {}.",
    ),
}
FIRST_TASK = {"fit": 80, "test": 0}  # of HumanEval


@dataclass(frozen=True)
class Recording:
    """All roots of some texts, text by text, in order.

    texts: [N] int64, number of the root's text. roots: [N] int64, absolute positions. seeds: [N]
    int64. following: [N, D] int64, the tokens after the root, -1 beyond the end. ids: [N, D, POOL]
    int32, the drafter's best tokens, best first; logits, theirs, bfloat16. totals: [N, D] float32,
    logsumexp over the vocabulary.
    """

    texts: torch.Tensor
    roots: torch.Tensor
    seeds: torch.Tensor
    following: torch.Tensor
    ids: torch.Tensor
    logits: torch.Tensor
    totals: torch.Tensor


def make_prompts(tokenizer, half: str, count: int, humaneval: Path | None) -> list[list[int]]:
    """`count` HumanEval prompts as they are and `count` chats."""
    first = FIRST_TASK[half]
    code = humaneval_prompts(humaneval)[first : first + count]
    pairs = [(i + j, task) for i in range(8) for j, task in enumerate(TASKS[half])][:count]
    chats = [task.format(TOPICS[half][place % 8]) for place, task in pairs]
    return [tokenizer(text).input_ids for text in code] + [
        encode_chat(tokenizer, [{"role": "user", "content": chat}]) for chat in chats
    ]


@dataclass(frozen=True)
class Law:
    """What texts are drawn from; top_k 0 keeps all."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0

    def samplings(self, count: int, tokens: int) -> list[SamplingParams]:
        """One for each prompt, with its own seed."""
        usual = SamplingParams(tokens, self.temperature, self.top_k, self.top_p)
        return [replace(usual, seed=1000 + number) for number in range(count)]


def record(engine, prompts, params) -> Recording:
    """Decode `prompts` and keep what the drafter says at each root."""
    drafts: dict[int, list[tuple[torch.Tensor, ...]]] = {}
    original = engine.drafting.draft

    def draft(requests):
        logits = original(requests)
        best = logits.float().topk(POOL, dim=-1)
        totals = logits.float().logsumexp(-1)
        for row, request in enumerate(requests):
            kept = (best.indices[row].int(), best.values[row].bfloat16(), totals[row].clone())
            drafts.setdefault(request.number, []).append(kept)
        return torch.full_like(logits, -torch.inf)

    engine.drafting.draft = draft
    try:
        requests = [
            engine.submit(prompt, sampling, Speculation("ddtree", 1, 1))
            for prompt, sampling in zip(prompts, params, strict=True)
        ]
        while not engine.is_idle:
            engine.step()
    finally:
        engine.drafting.draft = original
    depth = engine.block_size - 1
    parts = [
        _of_text(number, request, drafts[request.number], depth)
        for number, request in enumerate(requests)
        if request.number in drafts
    ]
    return Recording(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _of_text(number, request, drafts, depth) -> tuple[torch.Tensor, ...]:
    """A text's columns of a Recording."""
    count = len(drafts)
    padded = torch.tensor(request.output + [-1] * depth)
    return (
        torch.full((count,), number),
        len(request.prompt) + torch.arange(count),
        torch.full((count,), request.seed),
        torch.stack([padded[i + 1 : i + 1 + depth] for i in range(count)]),
        *(torch.stack(column) for column in zip(*drafts, strict=True)),
    )


def recorded(folder: Path, name: str, make) -> Recording:
    """The recording of that name in `folder`, made and kept if it isn't there."""
    path = folder / f"{name}.pt"
    if path.is_file():
        columns = torch.load(path)
    else:
        made = make()
        columns = {field.name: getattr(made, field.name) for field in fields(made)}
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(columns, path)
        progress("recorded", name, len(columns["texts"]), "roots")
    return Recording(**columns)
