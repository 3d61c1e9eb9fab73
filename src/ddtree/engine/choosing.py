"""From what requests ask for to tokens: rules and edits as tensors, choices, log-probabilities."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree.core import (
    Choices,
    DraftTree,
    LogitEdits,
    SamplingRules,
    concat_edits,
    greedy_choices,
    top_candidates,
    walk_choices,
)
from ddtree.core.edits import ANY_TOKEN, NO_TOKEN
from ddtree.engine.request import Request, TokenLogprob
from ddtree.engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class SeededSampling:
    """Sampling parameters with the seed that is used."""

    params: SamplingParams
    seed: int


def choose(requests: Sequence[Request], tree: DraftTree, logits: Tensor) -> Choices:
    """The target's tokens at the rows of logits [B, M, V] that a walk can visit.

    Plain greedy requests need no walk: the argmax of all their rows costs less.
    """
    walking = [i for i, r in enumerate(requests) if not r.sampling.is_plain]
    if not walking:
        return greedy_choices(logits)
    if len(walking) == len(requests):
        return _walk(requests, tree, logits)
    chosen = torch.tensor(walking, device=logits.device)
    walked = _walk([requests[i] for i in walking], tree.take(chosen), logits[chosen])
    plain = [i for i, r in enumerate(requests) if r.sampling.is_plain]
    others = torch.tensor(plain, device=logits.device)
    order = torch.cat([chosen, others]).argsort()
    best = greedy_choices(logits[others])
    return Choices(
        torch.cat([walked.tokens, best.tokens])[order],
        torch.cat([walked.invalid, best.invalid])[order],
        torch.cat([walked.barred, best.barred])[order],
    )


def _walk(requests: Sequence[Request], tree: DraftTree, logits: Tensor) -> Choices:
    """Choices by walking; edits where any request has them."""
    device = logits.device
    rules = make_rules([SeededSampling(r.sampling, r.seed) for r in requests], logits)
    roots = torch.tensor([r.root_position for r in requests], device=device)
    edited = [r.edits for r in requests if r.edits is not None]
    if not edited:
        return walk_choices(tree, logits, rules, None, roots)
    # Requests without edits get edits that change nothing.
    nothing = make_edits(SamplingParams(), (), (), logits.shape[-1]).to(device)
    edits = concat_edits([nothing if r.edits is None else r.edits for r in requests])
    return walk_choices(tree, logits, rules, edits, roots)


def make_rules(samplings: Sequence[SeededSampling], logits: Tensor) -> SamplingRules:
    """Rules for logits [..., V]."""
    vocab, device = logits.shape[-1], logits.device
    params = [sampling.params for sampling in samplings]

    def floats(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    return SamplingRules(
        seeds=torch.tensor([sampling.seed for sampling in samplings], device=device),
        temperatures=floats([p.temperature for p in params]),
        top_k=torch.tensor(
            [min(p.top_k, vocab) if p.top_k > 0 else vocab for p in params], device=device
        ),
        top_p=floats([p.top_p for p in params]),
        min_p=floats([p.min_p for p in params]),
    )


def make_edits(
    params: SamplingParams, prompt: Sequence[int], stops: Collection[int], vocab: int
) -> LogitEdits:
    """Edits of one request before its first token, on the CPU."""

    def marked(ids: Collection[int]) -> Tensor:
        marks = torch.zeros(1, vocab, dtype=torch.bool)
        marks[0, [i for i in ids if 0 <= i < vocab]] = True
        return marks

    bias = torch.zeros(1, vocab)
    for token, value in params.logit_bias.items():
        bias[0, token] = value
    length = max((len(word) for word in params.bad_words), default=1)
    words = [[ANY_TOKEN] * (length - len(word)) + list(word) for word in params.bad_words]
    banned = torch.tensor(words, dtype=torch.int64).view(1, len(words), length)
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    repetition, presence, frequency = (
        torch.tensor([value], dtype=torch.float64) for value in penalties
    )
    return LogitEdits(
        bias=bias,
        repetition=repetition,
        presence=presence,
        frequency=frequency,
        prompt=marked(set(prompt)),
        counts=torch.zeros(1, vocab, dtype=torch.int32),
        stops=marked(stops),
        waits=torch.tensor([params.min_tokens]),
        banned=banned,
        recent=torch.full((1, length - 1), NO_TOKEN),
    )


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Raw log-probabilities of `tokens` and of the `top` best at rows of logits [n, V]."""
    best = top_candidates(logits[None], max(top, 1))
    ids, values = best.tokens[0].tolist(), best.log_probs[0].tolist()
    own = torch.log_softmax(logits.float(), -1)[range(len(tokens)), list(tokens)].tolist()
    return [
        TokenLogprob(token, own[row], tuple(zip(ids[row][:top], values[row][:top], strict=True)))
        for row, token in enumerate(tokens)
    ]
