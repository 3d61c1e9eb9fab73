"""What candidates that look at the noise must satisfy, against a slow twin in plain Python.

The code under test is looked up at each call, so that a bug planted there is what gets checked.
"""

import math
from dataclasses import replace

import torch

from ddtree import core
from ddtree.core import coupling

SEEDS = [2**40 + 7, 5, 2**62 + 1]
ROOTS = [0, 31, 4000]
VOCAB = 2500  # two or three tokens in each class of a pool


def random_logits(batch, depth, vocab, seed=0, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(batch, depth, vocab, generator=generator)


def make_coupling(rows, depth, coefficients=None):
    """Requests `rows` with seeds and roots of their own; every depth has other coefficients, or
    all have `coefficients`."""
    steps = torch.arange(depth).float() + torch.tensor(rows)[:, None] / 3
    a, b, c = (1.4 - 0.1 * steps, 1.1 - 0.2 * steps, steps - 1)
    if coefficients is not None:
        a, b, c = (torch.full_like(a, value) for value in coefficients)
    return coupling.Coupling(
        torch.tensor(rows),
        torch.tensor([SEEDS[row] for row in rows]),
        torch.tensor([ROOTS[row] for row in rows]),
        a,
        b,
        c,
    )


def slow_twin(logits, made, place, depth):
    """Log P of the pool's tokens of one request at one depth (from 0), in float64, by token."""
    row = logits[made.rows[place], depth].double()
    log_q = row.log_softmax(-1).tolist()
    classes = [range(first, len(log_q), coupling.POOL) for first in range(coupling.POOL)]
    pool = [max(ids, key=lambda token: (log_q[token], -token)) for ids in classes if ids]
    position = made.roots[place] + depth + 1
    noise = core.gumbel(made.seeds[place], position, torch.arange(len(log_q))).tolist()
    a, b, c = (values[place, depth].item() for values in (made.log_q, made.noise, made.rest))
    scores = {token: a * log_q[token] + b * noise[token] for token in pool}
    total = sum(math.exp(score) for score in scores.values())
    others = set(range(len(log_q))) - set(pool)
    if others:
        total += math.exp(c) * math.fsum(math.exp(log_q[token]) for token in others) ** a
    return {token: score - math.log(total) for token, score in scores.items()}


def check_twin(vocab=VOCAB, topk=9):
    """Tokens and values of all coupled rows; a vocabulary beyond the pool unless told."""
    logits, made = random_logits(3, 4, vocab), make_coupling([0, 2], 4)
    got = coupling.coupled_candidates(logits, topk, made)
    kept = min(topk, vocab)
    assert got.tokens.shape == got.log_probs.shape == (3, 4, kept)
    assert got.log_probs.dtype == torch.float32
    assert not got.invalid.any()
    for place, row in enumerate([0, 2]):
        for depth in range(4):
            true = slow_twin(logits, made, place, depth)
            best = sorted(true, key=lambda token: (-true[token], token))[:kept]
            assert got.tokens[row, depth].tolist() == best
            # Sums of float32 terms.
            expected = torch.tensor([true[token] for token in best])
            assert torch.allclose(got.log_probs[row, depth], expected, atol=2e-5, rtol=1e-5)


def check_small_vocabulary():
    """The pool holds all: P sums to 1, and `rest` is of no matter."""
    check_twin(vocab=40)
    logits, made = random_logits(3, 4, 40), make_coupling([0, 1, 2], 4)
    got = coupling.coupled_candidates(logits, 64, made)
    total = got.log_probs.double().exp().sum(-1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-5)
    other = replace(made, rest=made.rest - 20)
    # What rounding leaves of the missing mass counts for up to 1e-6.
    changed = coupling.coupled_candidates(logits, 64, other)
    assert torch.allclose(changed.log_probs, got.log_probs, atol=1e-5)


def check_other_rows():
    """Rows that are not coupled come out as without any coupling, bit for bit."""
    logits = random_logits(3, 4, VOCAB).bfloat16()
    plain = core.top_candidates(logits, 5)
    got = coupling.coupled_candidates(logits, 5, make_coupling([1], 4))
    for row in (0, 2):
        assert torch.equal(got.tokens[row], plain.tokens[row])
        bits = (values.log_probs[row].view(torch.int32) for values in (got, plain))
        assert torch.equal(*bits)
    assert not torch.equal(got.tokens[1], plain.tokens[1])


def check_alone():
    """A batch of mixed coefficients gives what each row gives alone, worked on together or not."""
    logits, made = random_logits(3, 4, VOCAB), make_coupling([0, 1, 2], 4)
    for at_once in (None, 1, 2):
        batch = coupling.coupled_candidates(logits, 6, made, at_once)
        for row in range(3):
            own = replace(make_coupling([row], 4), rows=torch.tensor([0]))
            alone = coupling.coupled_candidates(logits[[row]], 6, own)
            assert torch.equal(batch.tokens[row], alone.tokens[0])
            assert torch.equal(batch.log_probs[row], alone.log_probs[0])


def check_plain_coefficients():
    """a = 1, b = 0 gives the drafter's own log-probabilities, as long as `rest` is 0, and its
    ranking, as far as the pool reaches."""
    for vocab in (700, VOCAB):
        logits = random_logits(3, 4, vocab)
        got = coupling.coupled_candidates(logits, 8, make_coupling([0, 1, 2], 4, (1, 0, 0)))
        expected = logits.log_softmax(-1).gather(-1, got.tokens)
        assert torch.allclose(got.log_probs, expected, atol=1e-5)
        assert (got.log_probs.diff(dim=-1) <= 0).all()
        if vocab <= coupling.POOL:
            assert torch.equal(got.tokens, core.top_candidates(logits, 8).tokens)


def check_ties():
    """Equal values rank by lower id, within a class and between classes."""
    logits = torch.zeros(1, 2, VOCAB)
    logits[0, 0, [coupling.POOL + 6, 7, 90]] = 2.0
    got = coupling.coupled_candidates(logits, 5, make_coupling([0], 2, (2, 0, 0)))
    assert got.tokens[0].tolist() == [[7, 90, coupling.POOL + 6, 0, 1], [0, 1, 2, 3, 4]]


def check_unusable():
    """NaN and +inf flag their request alone and leave nothing to draft; -inf is no candidate."""
    for bad in (math.nan, -math.nan, math.inf):
        logits, made = random_logits(3, 2, VOCAB), make_coupling([0, 1], 2)
        good = coupling.coupled_candidates(logits, 4, made)
        logits[1, 0, 650] = bad
        got = coupling.coupled_candidates(logits, 4, made)
        assert got.invalid.tolist() == [False, True, False]
        assert (got.log_probs[1] == -math.inf).all()
        assert torch.equal(got.log_probs[[0, 2]], good.log_probs[[0, 2]])
    logits = torch.full((1, 2, 9), -math.inf)
    logits[0, 0, [3, 5]] = 1.0
    got = coupling.coupled_candidates(logits, 4, make_coupling([0], 2))
    assert sorted(got.tokens[0, 0, :2].tolist()) == [3, 5]
    assert (got.log_probs[0, 0] > -math.inf).tolist() == [True, True, False, False]
    assert (got.log_probs[0, 1] == -math.inf).all()
    assert not got.invalid.any()
    assert not got.log_probs.isnan().any()


def check_draws(temperature=0.7):
    """With the target's own logits, a = 1 / T and b = 1 the best candidate at each depth is the
    token that `sample` draws there."""
    logits = random_logits(3, 6, VOCAB, seed=3)
    made = make_coupling([0, 1, 2], 6, (1 / temperature, 1, 0))
    got = coupling.coupled_candidates(logits, 1, made)
    rules = core.SamplingRules(
        seeds=made.seeds,
        temperatures=torch.full((3,), temperature, dtype=torch.float64),
        top_k=torch.full((3,), VOCAB),
        top_p=torch.ones(3, dtype=torch.float64),
        min_p=torch.zeros(3, dtype=torch.float64),
    )
    for depth in range(6):
        drawn = core.sample(logits[:, depth].double(), rules, made.roots + depth + 1)
        assert got.tokens[:, depth, 0].tolist() == drawn.tolist()
