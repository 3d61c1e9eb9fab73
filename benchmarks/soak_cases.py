"""Requests of the soak with the answers they must get, whoever else is served meanwhile."""

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from ddtree.engine import EngineConfig, SamplingParams, Speculation, load_engine
from ddtree.models.text import TextStream
from ddtree.models.zoo import ModelPaths

GAP = 1e-3  # a smaller one between the two best logits may go either way in float32
METHODS = (
    {"method": "ar"},
    {"method": "chain"},
    {"method": "ddtree", "budget": 8, "topk": 4},
    {"method": "ddtree", "budget": 40, "topk": 8},
    {"method": "ddtree", "budget": 16, "topk": 4, "draft_window": 16},
)
BAD = (
    {"prompt": [10**6]},
    {"prompt": []},
    {"max_tokens": -1},
    {"temperature": "hot"},
    {"speculation": {"method": "ddtree", "budgets": 8}},
    {"speculation": {"method": "ddtree", "draft_window": 10**6}},
    {"tools": [{"type": "function"}]},
)
WEIGHTS = {
    "greedy": 35,
    "two choices": 8,
    "sampled": 15,
    "stop id": 8,
    "stop string": 8,
    "abort": 18,
    "bad": 8,
}


@dataclass(frozen=True)
class Solo:
    """A prompt and its greedy continuation, decoded alone without drafts as far as no near-tie
    leaves it open."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    text: str
    prefixes: tuple[str, ...]  # text of the first i + 1 tokens, what is not certain yet held back


@dataclass(frozen=True)
class Call:
    """One request: its kind, JSON body, and what must come back.

    `ids` and `text` None where no answer is known beforehand. A client leaves after `chunks` of a
    stream or `leave_s` seconds; None for one that stays.
    """

    kind: str
    body: dict[str, Any]
    status: int = 200
    ids: tuple[int, ...] | None = None
    text: str | None = None
    chunks: int | None = None
    leave_s: float | None = None

    @property
    def leaves(self) -> bool:
        """Whether the client does not wait for the end."""
        return self.chunks is not None or self.leave_s is not None


@dataclass
class Answer:
    """What came back: by choice its ids, text and finish reason; tokens as the server counts."""

    status: int
    ids: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)
    completion_tokens: int | None = None
    error: str | None = None


def decode_solos(paths: ModelPaths, prompts: list[list[int]], tokens: int, room: int) -> list[Solo]:
    """Solos of the prompts, in float32; those that nearly tie at once are left out."""
    loaded = load_engine(paths, dtype="float32", config=EngineConfig(slots=1, max_context=room))
    sampling = SamplingParams(tokens, ignore_eos=True, logprobs=2)
    solos = []
    for prompt in prompts:
        request = loaded.engine.generate([prompt], sampling, Speculation("ar"))[0]
        gaps = [entry.top[0][1] - entry.top[1][1] for entry in request.logprobs]
        count = next((i for i, gap in enumerate(gaps) if gap < GAP), len(gaps))
        if count < 4:
            continue
        stream, pieces = TextStream(loaded.tokenizer, prompt), []
        for token in request.output[:count]:
            pieces.append((pieces[-1] if pieces else "") + stream.push([token]))
        output, text = tuple(request.output[:count]), pieces[-1] + stream.finish()
        solos.append(Solo(tuple(prompt), output, text, tuple(pieces)))
    return solos


def draw_call(solos: list[Solo], rng: random.Random) -> Call:
    """A request of a random kind."""
    kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    solo = rng.choice(solos)
    body: dict[str, Any] = {
        "prompt": list(solo.prompt),
        "max_tokens": rng.randint(1, len(solo.output)),
        "temperature": 0,
        "ignore_eos": True,
        "stream": rng.random() < 0.7,
        "return_token_ids": True,
        "speculation": rng.choice(METHODS),
    }
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    if kind == "bad":
        return Call(kind, body | rng.choice(BAD), status=400)
    if kind == "abort":
        body["max_tokens"] = len(solo.output)
        if body["stream"]:
            return Call(kind, body, chunks=rng.randint(0, 5))
        return Call(kind, body, leave_s=rng.uniform(0, 0.3))
    if kind in ("sampled", "two choices"):
        shaping = {"temperature": 0.8, "top_p": 0.95, "seed": rng.randrange(2**31)}
        return Call(kind, body | shaping | {"n": 2 if kind == "two choices" else 1})
    if kind == "stop id":
        return _stopped_by_id(body, solo, rng)
    if kind == "stop string":
        return _stopped_by_text(body, solo, rng)
    ids = solo.output[: body["max_tokens"]]
    whole = solo.text if len(ids) == len(solo.output) else None
    return Call(kind, body, ids=ids, text=whole)


def _stopped_by_id(body: dict[str, Any], solo: Solo, rng: random.Random) -> Call:
    stop = rng.choice(solo.output)
    body |= {"stop_token_ids": [stop], "max_tokens": len(solo.output)}
    ids = solo.output[: solo.output.index(stop) + 1]
    return Call("stop id", body, ids=ids)


def _stopped_by_text(body: dict[str, Any], solo: Solo, rng: random.Random) -> Call:
    """One or two characters of the text, before which it must end; a text without a whole
    character stops nothing."""
    certain = solo.prefixes[-1]
    whole = [i for i, character in enumerate(certain) if character != "\ufffd"]
    body["max_tokens"] = len(solo.output)
    if not whole:
        return Call("stop string", body, ids=solo.output, text=solo.text)
    start = rng.choice(whole)
    stop = certain[start : start + 1 + (start + 1 in whole)]
    place = certain.index(stop)
    count = next(i for i, text in enumerate(solo.prefixes, 1) if len(text) >= place + len(stop))
    return Call(
        "stop string", body | {"stop": [stop]}, ids=solo.output[:count], text=certain[:place]
    )


def judge(call: Call, answer: Answer) -> str | None:
    """What is wrong with an answer, None if nothing is."""
    if answer.status != call.status:
        return f"status {answer.status}, expected {call.status}: {answer.error}"
    if call.status != 200:
        return None if answer.error else "an error without a message"
    if answer.error is not None:
        return f"error in the stream: {answer.error}"
    if sorted(answer.finish) != list(range(call.body.get("n", 1))):
        return f"finish reasons of choices {sorted(answer.finish)}"
    total = sum(map(len, answer.ids.values()))
    if answer.completion_tokens != total:
        return f"{answer.completion_tokens} tokens by usage, {total} ids"
    for index in answer.finish:
        ids, text = tuple(answer.ids.get(index, ())), answer.text.get(index, "")
        if call.ids is not None and ids != call.ids:
            return f"choice {index}: ids {ids}, alone {call.ids}"
        if call.text is not None and text != call.text:
            return f"choice {index}: text {text!r}, alone {call.text!r}"
    return None


def prompt_lengths(window: int, longest: int, count: int, rng: random.Random) -> list[int]:
    """Short, on both sides of the draft window, and anything up to `longest`."""
    edges = [1, window - 1, window, window + 1]
    return edges + [rng.randint(1, longest) for _ in range(count - len(edges))]


def random_prompts(lengths: list[int], vocabulary: int, seed: int) -> list[list[int]]:
    """Prompts of random ids."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocabulary, (n,), generator=generator).tolist() for n in lengths]
