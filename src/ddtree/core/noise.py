"""Counter-based Gumbel noise: a pure function of (seed, absolute position, token id).

Whoever needs the noise of a token computes it; nothing is drawn in sequence. So a token's noise is
the same in `ar`, `chain` and `ddtree`, alone or in any batch, on any device: a request's seed
alone decides which tokens sampling gives.

The bits are SplitMix64's (Steele, Lea and Flood, 2014), a Weyl sequence behind a 64-bit mixer,
keyed twice: by the seed, then by the position; the token id is the counter.
"""

import math

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The int64 with the same 64 bits; tensors multiply modulo 2^64 either way."""
    return value - (1 << 64) if value >= 1 << 63 else value


_WEYL = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)

_LN2 = math.log(2.0)
_SQRT_HALF = math.sqrt(0.5)
# log m = 2 atanh(s), s = (m - 1) / (m + 1): for m in [sqrt(1/2), sqrt(2)] s^2 is below 0.0295, so
# the terms beyond these are below a rounding error.
_ATANH = tuple(1.0 / (2 * n + 1) for n in range(12))


def gumbel(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Gumbel(0, 1) noise in float64, the same bits on every device.

    seeds, positions, tokens: int64, broadcast against each other. With k the top 32 bits of the
    mixed counter and u = (k + 1/2) / 2^32 the noise is -ln(-ln u), from -3.1 to 22.9.
    """
    return -_log(-_log(uniform(seeds, positions, tokens)))


def approximate_gumbel(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """`gumbel` within APPROXIMATION_ERROR and several times faster: by the library's logarithm,
    whose last bits differ between devices and vector widths."""
    return uniform(seeds, positions, tokens).log_().neg_().log_().neg_()


APPROXIMATION_ERROR = 1e-9


def uniform(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Float64 in (0, 1), never 0 or 1: the midpoints of 2^32 equal cells."""
    key = _mix(_mix(seeds) + positions * _WEYL)
    bits = _shift(_mix(key + tokens * _WEYL), 32)
    return (bits.double() + 0.5) * 2.0**-32


def derived_seed(seed: int, index: int) -> int:
    """The seed of a request's choice `index`; choice 0 has the request's own."""
    if index == 0:
        return seed
    mixed = _mix(torch.tensor(seed)) + torch.tensor(index) * _MIX_1
    return int(_mix(mixed) & 0x7FFFFFFFFFFFFFFF)


def _mix(value: Tensor) -> Tensor:
    """SplitMix64's output function; a bijection of 64 bits."""
    value = value + _WEYL
    value = (value ^ _shift(value, 30)) * _MIX_1
    value = (value ^ _shift(value, 27)) * _MIX_2
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical shift right: tensors shift the sign in."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _log(value: Tensor) -> Tensor:
    """Natural logarithm of positive float64, within 4 units of the last place.

    Additions, multiplications and divisions alone: they round alike everywhere, which library
    logarithms don't.
    """
    mantissa, exponent = torch.frexp(value)  # mantissa in [1/2, 1)
    low = mantissa < _SQRT_HALF
    mantissa = torch.where(low, 2 * mantissa, mantissa)
    power = exponent.double() - low.double()
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = torch.full_like(square, _ATANH[-1])
    for coefficient in _ATANH[-2::-1]:
        series = series * square + coefficient
    return power * _LN2 + 2 * (s * series)
