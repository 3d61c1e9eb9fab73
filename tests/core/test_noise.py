"""Keyed noise: the bits, the law and the independence of neighbours."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.sampling_checks import check_noise
from ddtree import core
from ddtree.core import noise
from support.law import assert_uniform

SEEDS = (0, 1, 2, 2**31, 2**62, 2**63 - 2, 2**63 - 1)
SIZE = 20_000
# Each statistical test has fixed seeds; of all of them together one would fail by chance with less
# than this chance, had the seeds been drawn at random.
ODDS = 1e-6


def column(*values):
    return torch.tensor(values)[:, None]


def test_the_mixer_is_splitmix64():
    """The published first outputs of SplitMix64 from states 0 and 1234567."""
    known = {0: 0xE220A8397B1DCDAF, 1234567: 6457827717110365317}
    for state, value in known.items():
        assert int(noise._mix(torch.tensor(state))) & (2**64 - 1) == value


def test_bits_and_noise_of_chosen_keys():
    positions = torch.tensor([0, 1, 2, 4095, 2**31, 2**40])
    tokens = torch.tensor([0, 1, 63, 49151, 2**20])
    check_noise(torch.tensor(SEEDS)[:, None, None], positions[None, :, None], tokens[None, None, :])


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**48), st.integers(0, 2**31 - 1))
def test_bits_and_noise_of_any_key(seed, position, token):
    check_noise(torch.tensor([seed]), torch.tensor([position]), torch.tensor([token]))


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_the_shape(threads):
    """Whole tensors against slices of all lengths, strides and orders, and scalars."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seeds, positions, tokens = column(0, 2**62), column(0, 1, 9), torch.arange(40_001)
        seeds = seeds[:, None]
        whole = core.gumbel(seeds, positions, tokens)
        for first, last, step in [(0, 1, 1), (0, 5, 1), (3, 10, 1), (1, 40_001, 1), (0, 999, 7)]:
            part = core.gumbel(seeds, positions, tokens[first:last:step])
            assert torch.equal(part, whole[..., first:last:step])
        turned = core.gumbel(
            seeds.permute(2, 1, 0), positions[None].permute(2, 1, 0), tokens[:, None, None]
        )
        assert torch.equal(turned.permute(2, 1, 0), whole)
        expanded = tokens.expand(3, -1)[:, ::3]
        assert torch.equal(core.gumbel(seeds, positions, expanded), whole[..., ::3])
        one = core.gumbel(torch.tensor(2**62), torch.tensor(9), torch.tensor(40_000))
        assert torch.equal(one, whole[1, 2, 40_000])
    finally:
        torch.set_num_threads(before)


def test_logarithm_is_within_four_units_of_the_last_place():
    generator = torch.Generator().manual_seed(0)
    near_one = 1 + (torch.rand(20_000, generator=generator, dtype=torch.float64) - 0.5) / 64
    spread = torch.exp(60 * torch.rand(20_000, generator=generator, dtype=torch.float64) - 30)
    edges = torch.tensor(
        [2.0**-33, 1 - 2.0**-33, math.sqrt(0.5), 1.0, 2.0, 22.9], dtype=near_one.dtype
    )
    edges = torch.cat([edges, edges.nextafter(edges * 0), edges.nextafter(edges * 9)])
    for value in (near_one, spread, edges):
        for got, x in zip(noise._log(value).tolist(), value.tolist(), strict=True):
            assert abs(got - math.log(x)) <= 4 * math.ulp(math.log(x)), x


def test_the_ends_of_the_range_are_finite(monkeypatch):
    """The mixed counter's lowest and highest 32 bits."""
    for bits, expected in ((0, -3.13), (2**32 - 1, 22.87)):
        monkeypatch.setattr(noise, "_shift", lambda value, count, b=bits: torch.full_like(value, b))
        zero = torch.zeros(1, dtype=torch.int64)
        u = noise.uniform(zero, zero, zero)
        assert 0 < float(u) < 1
        assert float(core.gumbel(zero, zero, zero)) == pytest.approx(expected, abs=0.01)
        assert float(noise.approximate_gumbel(zero, zero, zero)) == pytest.approx(
            expected, abs=0.01
        )


def lanes(kind, key):
    """Uniforms [SIZE] over tokens, positions or seeds, the other two fixed at `key`."""
    run, one, other = torch.arange(SIZE), torch.tensor([key]), torch.tensor([key + 1])
    if kind == "tokens":
        return noise.uniform(one, other, run)
    if kind == "positions":
        return noise.uniform(one, run, other)
    return noise.uniform(key + run, one, other)


@pytest.mark.parametrize("key", [0, 1, 2**62])
@pytest.mark.parametrize("kind", ["tokens", "positions", "seeds"])
def test_uniform_over_each_key(kind, key):
    assert_uniform(lanes(kind, key).tolist(), ODDS / 100)


@pytest.mark.parametrize("key", [0, 1, 2**62])
@pytest.mark.parametrize("lag", [1, 2, 64])
@pytest.mark.parametrize("kind", ["tokens", "positions", "seeds"])
def test_neighbours_are_not_correlated(kind, lag, key):
    """Hoeffding: the mean of products of centred uniforms, in [-1/4, 1/4], is within
    sqrt(ln(2 / odds) / (8 n)) of 0; pairs (i, i + lag) split into two independent halves."""
    values = lanes(kind, key) - 0.5
    products = values[:-lag] * values[lag:]
    for half in (0, 1):
        some = products[(torch.arange(len(products)) // lag) % 2 == half]
        limit = math.sqrt(math.log(2 / (ODDS / 1000)) / (8 * len(some)))
        assert abs(float(some.mean())) <= limit


def test_pairs_of_keys_fill_the_square():
    """Where one key's neighbour is another's: adjacent seeds at adjacent positions."""
    run = torch.arange(SIZE)
    zero, one = torch.tensor([0]), torch.tensor([1])
    for a, b in [
        (noise.uniform(zero, run, zero), noise.uniform(one, run, zero)),
        (noise.uniform(zero, run + 1, zero), noise.uniform(one, run, zero)),
        (noise.uniform(zero, zero, run + 1), noise.uniform(zero, one, run)),
    ]:
        assert_uniform(((a + b) % 1).tolist(), ODDS / 100)
        assert_uniform(((a - b) % 1).tolist(), ODDS / 100)


def test_the_argmax_draws_the_distribution():
    """Gumbel's theorem with this noise: shares of V = 4 tokens over seeds, by Hoeffding."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    seeds = torch.arange(SIZE)[:, None]
    drawn = (p.log() + core.gumbel(seeds, torch.tensor([9]), torch.arange(4))).argmax(-1)
    shares = torch.bincount(drawn, minlength=4) / SIZE
    limit = math.sqrt(math.log(2 / (ODDS / 100)) / (2 * SIZE))
    assert float((shares - p).abs().max()) <= limit


def test_derived_seeds():
    for seed in SEEDS:
        derived = [core.derived_seed(seed, index) for index in range(200)]
        assert derived[0] == seed
        assert len(set(derived)) == 200
        assert all(0 <= one < 2**63 for one in derived)
    assert len({core.derived_seed(seed, 1) for seed in range(200)}) == 200


def test_law_tests_see_a_bad_source():
    """What `assert_uniform` is for: half a law, and a shifted one."""
    values = lanes("tokens", 0)
    for bad in (values * 0.97, values.sqrt(), values[:100].repeat(200)):
        with pytest.raises(AssertionError):
            assert_uniform(bad.tolist(), ODDS)


@pytest.mark.gpu
def test_bits_are_equal_on_a_gpu():
    seeds, positions, tokens = column(*SEEDS), column(*range(7)), torch.arange(49_152)
    expected = core.gumbel(seeds, positions, tokens)
    got = core.gumbel(seeds.cuda(), positions.cuda(), tokens.cuda()).cpu()
    assert torch.equal(got, expected)
