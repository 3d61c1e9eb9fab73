"""The target's law written a second time, in plain Python and numpy, and tests of goodness of fit.

Nothing here imports the package: lists and dicts for edits, a sequential loop for filters, integers
for noise, so that what is shared with the code under test is the definition alone.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import numpy as np

WORD = (1 << 64) - 1
Law = dict[Hashable, float]


# ---- noise -------------------------------------------------------------------------------------


def splitmix(value: int) -> int:
    """SplitMix64's next output from state `value` (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def noise_bits(seed: int, position: int, token: int) -> int:
    """The 32 bits behind a token's noise."""
    weyl = 0x9E3779B97F4A7C15
    key = splitmix((splitmix(seed) + position * weyl) & WORD)
    return splitmix((key + token * weyl) & WORD) >> 32


def gumbel_of(seed: int, position: int, token: int) -> float:
    """Its Gumbel noise by the C library's logarithm."""
    u = (noise_bits(seed, position, token) + 0.5) / 2.0**32
    return -math.log(-math.log(u))


# ---- edits -------------------------------------------------------------------------------------


def edited_row(
    logits: Sequence[float],
    params,
    prompt: Sequence[int],
    output: Sequence[int],
    stops: Iterable[int] = (),
) -> list[float]:
    """A row after bias, penalties and bans, given the tokens so far; `params` has the fields of
    SamplingParams."""
    values = [value + params.logit_bias.get(token, 0.0) for token, value in enumerate(logits)]
    counts = Counter(output)
    for token in set(prompt) | set(output):
        factor = params.repetition_penalty
        values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token, count in counts.items():
        values[token] -= params.frequency_penalty * count + params.presence_penalty
    if len(output) < params.min_tokens:
        for token in stops:
            values[token] = -math.inf
    for word in params.bad_words:
        before = list(word[:-1])
        if list(output)[len(output) - len(before) :] == before and len(before) <= len(output):
            values[word[-1]] = -math.inf
    return values


# ---- filters -----------------------------------------------------------------------------------


def kept_tokens(logits: Sequence[float], params, slack: float = 0.0) -> tuple[list[int], list[int]]:
    """Tokens that the filters certainly keep, and those they may keep, best first, where `slack`
    of probability mass decides nothing. One filter after the other, renormalised in between."""
    values = np.asarray(logits, dtype=np.float64)
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    shares = _shares(values[order], params.temperature)
    if params.top_k > 0:
        order, shares = order[: params.top_k], shares[: params.top_k]
    shares = shares / math.fsum(shares)
    before = np.concatenate([[0.0], np.cumsum(shares)[:-1]])
    sure, maybe = before < params.top_p - slack, before < params.top_p + slack
    if params.top_p >= 1:
        sure, maybe = np.ones_like(sure), np.ones_like(maybe)
    sure[0] = maybe[0] = True
    ratio = shares / shares[0]
    equal = values[order] == values[order[0]]  # an edge that rounding can't move
    sure &= equal | (ratio >= params.min_p * (1 + slack))
    maybe &= equal | (ratio >= params.min_p * (1 - slack)) & (params.min_p < 1)
    sure, maybe = sure & (shares > 0), maybe & (shares > 0)  # by underflow, or banned
    pick = np.array(order)
    return pick[sure].tolist(), pick[maybe].tolist()


def processed(logits: Sequence[float], params) -> np.ndarray:
    """The distribution [V] that a token is drawn from, of logits that are already edited; one
    point where temperature is 0."""
    values = np.asarray(logits, dtype=np.float64)
    found = np.zeros_like(values)
    if params.temperature == 0:
        found[int(values.argmax())] = 1.0
        return found
    kept = kept_tokens(values, params)[0]
    weights = _shares(values[kept], params.temperature)
    found[kept] = weights / math.fsum(weights)
    return found


def _shares(values: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        weights = np.exp((values - values.max()) / temperature)
    return weights / math.fsum(weights)


def drawn_token(probabilities: np.ndarray, seed: int, position: int) -> int:
    """The token that the keyed noise draws: the largest log p + noise."""
    scores = [
        (math.log(p) + gumbel_of(seed, position, token), -token)
        for token, p in enumerate(probabilities)
        if p > 0
    ]
    return -max(scores)[1]


def sampled_text(
    next_logits: Callable[[Sequence[int]], Sequence[float]],
    params,
    prompt: Sequence[int],
    count: int,
) -> list[int]:
    """The text of a seed one token at a time: `next_logits(output)` [V], edits, filters, noise. A
    stop token of `params` ends it."""
    output: list[int] = []
    while len(output) < count and not set(output[-1:]) & set(params.stop_token_ids):
        edited = edited_row(next_logits(output), params, prompt, output, params.stop_token_ids)
        p = processed(edited, params)
        if params.temperature == 0:
            output.append(int(p.argmax()))
        else:
            output.append(drawn_token(p, params.seed, len(prompt) + len(output)))
    return output


# ---- joint laws --------------------------------------------------------------------------------


def joint_law(step: Callable[[tuple[int, ...]], np.ndarray], length: int) -> Law:
    """The law of the next `length` tokens by the chain rule; `step(path)` [V] is the law of the
    token after `path`."""
    law: Law = {(): 1.0}
    for _ in range(length):
        law = {
            (*path, token): weight * float(p)
            for path, weight in law.items()
            for token, p in enumerate(step(path))
            if p > 0
        }
    return law


def total_variation(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> float:
    """Half the summed difference of two laws."""
    keys = set(one) | set(other)
    return 0.5 * math.fsum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in keys)


# ---- goodness of fit ---------------------------------------------------------------------------


def assert_drawn_from(samples: Sequence[tuple[int, ...]], law: Law, odds: float) -> None:
    """AssertionError if tuples were not drawn from `law`; a false alarm with chance `odds` at most.

    Every cell of every marginal over consecutive places is held against its binomial law by
    Chernoff's bound, P(|share - p| as far or farther) <= 2 exp(-n KL(share || p)), and Bonferroni
    divides `odds` among the cells; a tuple outside the law's support is always an alarm.
    """
    assert samples
    strange = set(samples) - set(law)
    assert not strange, f"drawn, but impossible: {sorted(strange)[:3]}"
    length, size = len(samples[0]), len(samples)
    tests: dict[Hashable, tuple[float, float]] = {}
    for first in range(length):
        for last in range(first + 1, length + 1):
            seen = Counter(sample[first:last] for sample in samples)
            expected: Counter = Counter()
            for path, weight in law.items():
                expected[path[first:last]] += weight
            tests |= {
                (first, cell): (seen[cell] / size, min(p, 1.0)) for cell, p in expected.items()
            }
    limit = math.log(2 * len(tests) / odds) / size
    for (first, cell), (share, p) in tests.items():
        distance = divergence(share, p)
        assert distance <= limit, f"{cell} from place {first}: {share:.4f} of {size}, law {p:.4f}"


def divergence(share: float, p: float) -> float:
    """Kullback-Leibler divergence of two coins, in nats; p within rounding of 1 is 1."""
    p = min(p, 1.0)
    total = 0.0
    for one, other in ((share, p), (1 - share, 1 - p)):
        if one > 1e-15:
            total += one * math.log(one / other) if other > 1e-12 else (math.inf, 0.0)[one < 1e-9]
    return total


def assert_uniform(values: Sequence[float], odds: float) -> None:
    """AssertionError if numbers were not drawn uniformly from (0, 1): the Kolmogorov-Smirnov
    distance against Massart's bound, P(distance > d) <= 2 exp(-2 n d^2)."""
    ordered = np.sort(np.asarray(values))
    size = len(ordered)
    steps = np.arange(size + 1) / size
    distance = max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1]))
    limit = math.sqrt(math.log(2 / odds) / (2 * size))
    assert distance <= limit, f"distance {distance:.5f} of {size} draws, limit {limit:.5f}"
