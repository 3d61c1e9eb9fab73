"""Fixed data for the checks of sampling: what the property tests draw, in seconds."""

import functools
import itertools
import math

import torch

from core.core_checks import make_tree
from core.rejection_checks import check_rejection_law, check_walk_law, random_rows, shapes
from core.sampling_checks import (
    check_draws,
    check_edits,
    check_filters,
    check_noise,
    check_walk,
    rules_of,
)
from ddtree import core
from ddtree import engine as engine_api
from ddtree.engine import SamplingParams, Speculation
from support import tiny
from support.drafts import with_drafts
from support.law import sampled_text

VOCAB = 4
PROMPTS = ((7, 3, 50, 12, 9), (20, 1), (33,))
EDITS = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.4,
    "logit_bias": {5: 3.0, 9: -math.inf},
    "bad_words": ((11,), (5, 8), (8, 5)),
    "min_tokens": 4,
    "stop_token_ids": (5, 30),
}
# The first and the last are plain, so that they stand apart from the others in a batch.
REQUESTS = (
    (PROMPTS[0], SamplingParams(10, seed=1)),
    (PROMPTS[0], SamplingParams(12, 1.0, top_k=12, top_p=0.9, seed=2)),
    (PROMPTS[1], SamplingParams(12, 1.2, seed=3, **EDITS)),
    (PROMPTS[2], SamplingParams(12, 0.8, min_p=0.02, seed=4)),
    (PROMPTS[1], SamplingParams(12, seed=5, **EDITS)),
    (PROMPTS[2], SamplingParams(9, seed=6)),
)


def check_keyed_noise() -> None:
    """Seeds, positions and tokens that differ in one key at a time."""
    seeds, positions = torch.tensor([0, 1, 2**62]), torch.tensor([0, 1, 7000])
    check_noise(seeds[:, None, None], positions[:, None], torch.tensor([0, 1, 49151]))


def random_logits(rows: int, vocab: int, *, tied: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab)
    if tied:
        return torch.randint(-2, 3, (rows, vocab), generator=generator).double()
    return 2 * torch.randn(rows, vocab, generator=generator, dtype=torch.float64)


def settings(vocab: int) -> list[SamplingParams]:
    """Every filter alone and all together, at several temperatures."""
    drawn = itertools.product(
        (0.3, 1.0, 2.0), (0, 1, 3, vocab - 1), (1.0, 0.6, 0.95), (0.0, 0.2, 1.0)
    )
    return [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, seed=n)
        for n, (t, k, p, m) in enumerate(drawn)
    ]


def check_filter_definition() -> None:
    """Sequential and renormalised, on random and tied rows."""
    for vocab, tied in itertools.product((5, 30), (False, True)):
        params = settings(vocab)
        check_filters(random_logits(len(params), vocab, tied=tied), params)


def check_exact_edges() -> None:
    """Quarters, whose sums are exact: the fewest tokens that reach top_p."""
    for top_p, count in ((0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.76, 4)):
        rules = rules_of([SamplingParams(temperature=1.0, top_p=top_p, seed=0)], 4)
        kept = core.log_probabilities(torch.zeros(1, 4), rules) > -math.inf
        assert kept[0].tolist() == [token < count for token in range(4)]


def check_single_draws() -> None:
    """The pool against the whole vocabulary, where it decides and where it can't."""
    for vocab, tied in itertools.product((30, 1500), (False, True)):
        params = settings(vocab) + [
            SamplingParams(temperature=t, top_k=k, top_p=p, seed=n)
            for n, (t, k, p) in enumerate(
                itertools.product((1.0, 9.0), (0, 1023, 1024, 1200), (1.0, 0.9, 0.999))
            )
        ]
        logits = random_logits(len(params), vocab, tied=tied)
        check_draws(logits, params, torch.arange(len(params)))
    # All equal, the pool's last token among them: which ones topk takes is its own affair.
    params = [SamplingParams(temperature=1.0, top_k=1023, seed=seed) for seed in range(20)]
    check_draws(torch.zeros(20, 3000), params, torch.arange(20))


def check_edited_rows() -> None:
    """Every edit alone, all in one batch, and after outputs of several lengths."""
    logits = random_logits(8, 6)
    every = (
        {"logit_bias": {0: 3.0, 1: -math.inf, 2: -3.0}, "repetition_penalty": 1.7},
        {"repetition_penalty": 0.6},
        {"presence_penalty": 1.1},
        {"frequency_penalty": -0.7},
        {"min_tokens": 3},
        {"bad_words": ((2,), (3, 4), (4, 3, 1))},
        {"bad_words": ((3, 4, 2, 5), (0, 3, 1))},
        {},
    )
    for output in ([], [3], [4, 3], [3, 4], [4, 3, 3], [0, 3, 4], [0, 3, 4, 2]):
        batch = [(SamplingParams(**one), [0, 1, 1], output, (5,)) for one in every]
        check_edits(logits, batch)


def check_walks() -> None:
    """Trees with padding that draws would match, mixed requests, several depths."""
    full = [(0, token) for token in range(VOCAB)]
    full += [(row, token) for row in range(1, 5) for token in range(VOCAB)]
    wanted = (
        {"temperature": 1.0},
        {"temperature": 1.5, "frequency_penalty": 1.5, "bad_words": ((1, 1), (0, 2))},
        {"temperature": 0.0, "presence_penalty": 2.0},
        {"temperature": 0.8, "top_k": 2, "min_tokens": 4},
        {"temperature": 1.0},
    )
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(5, len(full) + 1, VOCAB, generator=generator, dtype=torch.float64)
        tree = make_tree([full, full, full[:17], full, []], len(full))
        requests = [
            (SamplingParams(seed=10 * seed + n, **one), [0, 1], [3, 0], (2,))
            for n, one in enumerate(wanted)
        ]
        check_walk(tree, logits, requests, [3, 4, 5, 6, 7])


def check_laws() -> None:
    """Rejection's law and the walk's, by enumeration."""
    for seed, nodes in enumerate(shapes(3, 3)):
        for holes in (False, True):
            rows = random_rows(len(nodes) + 1, 3, seed, holes)
            check_walk_law(nodes, rows)
            check_rejection_law(nodes, rows)


def check_margins() -> None:
    """No move of the logits smaller than half a margin changes a token's side, and one of just
    over half does."""
    shares = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    rules = rules_of([SamplingParams(temperature=1.0, seed=0, top_p=0.6)], 3)
    margins = core.edge_margins(core.rank(shares.log(), rules), rules)[0].tolist()
    short, over = math.log(0.6 / 0.4), math.log(0.8 / 0.2) - math.log(0.6 / 0.4)
    expected = [math.log(0.5 / 0.3), min(short, math.log(0.3 / 0.2)), -math.log(0.3 / 0.2)]
    assert over > math.log(0.3 / 0.2)
    for got, wanted in zip(margins, expected, strict=True):
        assert abs(got - wanted) < 1e-9
    generator = torch.Generator().manual_seed(0)
    for number in range(300):
        # Near-ties, and here and there a token far below them.
        logits = torch.rand(1, 5, generator=generator, dtype=torch.float64)
        logits -= 6.0 * (torch.rand(1, 5, generator=generator) < 0.3)
        top_p = 0.99 - 0.003 * number
        params = SamplingParams(
            temperature=1.0, seed=0, top_p=top_p, top_k=number % 5, min_p=(number % 3) * 0.4
        )
        rules = rules_of([params], 5)
        signs = torch.randint(-1, 2, (1, 5), generator=generator).double()
        ranked = core.rank(logits, rules)
        margins = core.edge_margins(ranked, rules)
        for size in (0.02, 0.1, 0.5):
            moved = core.rank(logits + signs * size, rules)
            sides = torch.zeros(5, dtype=torch.bool).scatter(0, moved.ids[0], moved.kept[0])
            changed = ranked.kept[0] != sides[ranked.ids[0]]
            assert (margins[0, changed].abs() <= 2 * size + 1e-9).all()


# ---- the engine --------------------------------------------------------------------------------


@functools.cache
def reference_target():
    return tiny.tiny_target(1)


@functools.cache
def next_logits(prompt: tuple[int, ...], output: tuple[int, ...]) -> list[float]:
    """Logits [V] by the model's own forward pass."""
    with torch.inference_mode():
        ids = torch.tensor([*prompt, *output])
        return reference_target().reference_logits(ids)[-1].tolist()


@functools.cache
def reference_text(number: int) -> list[int]:
    prompt, params = REQUESTS[number]
    return sampled_text(
        lambda output: next_logits(prompt, tuple(output)), params, prompt, params.max_tokens
    )


def decode(logprobs: int | None = None) -> list[engine_api.Request]:
    """All requests together through trees that hold most of their next tokens."""
    target = tiny.tiny_target(1)
    config = engine_api.EngineConfig(slots=len(REQUESTS), max_context=64)
    engine = engine_api.Engine(target, tiny.tiny_drafter(target), config)

    def propose(request) -> list[int]:
        future = [*reference_text(request.number), *[0] * 5][len(request.output) :][:4]
        wrong = len(request.output) % 4
        return [(token + (place == wrong)) % 61 for place, token in enumerate(future)]

    with_drafts(engine, propose)
    requests = []
    for prompt, params in REQUESTS:
        fields = {**vars(params), "logprobs": logprobs}
        requests.append(
            engine.submit(prompt, SamplingParams(**fields), Speculation("ddtree", 8, 4))
        )
    while not engine.is_idle:
        engine.step()
    return requests


def check_seeded_text() -> None:
    """A mixed batch through trees gives each seed's text, decoded by hand one token at a time."""
    for number, request in enumerate(decode()):
        assert request.output == reference_text(number), f"request {number}"
        request.stats.check()


def check_logprobs() -> None:
    """Raw log-probabilities of the tokens at the rows that chose them."""
    for number, request in enumerate(decode(logprobs=2)):
        assert [entry.token_id for entry in request.logprobs] == request.output
        for place, entry in enumerate(request.logprobs):
            logits = next_logits(REQUESTS[number][0], tuple(request.output[:place]))
            row = torch.log_softmax(torch.tensor(logits), -1)
            assert abs(entry.logprob - float(row[entry.token_id])) < 1e-4
            best = row.topk(2)
            assert [token for token, _ in entry.top] == best.indices.tolist()
