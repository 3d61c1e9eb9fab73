"""Sampling as requests spell it."""

import math

import pytest

from ddtree.errors import ConfigError
from ddtree.records.sampling import Sampling


def test_greedy_says_so():
    greedy = Sampling()
    assert greedy.is_plain
    assert greedy.label == "greedy"
    # A server's default temperature is not 0, so it is always sent.
    assert greedy.to_request() == {"temperature": 0.0}
    assert greedy.with_seed(3) == greedy


def test_fields_that_ask_for_something_are_sent():
    sampling = Sampling(0.7, top_p=0.95, top_k=40, frequency_penalty=0.5).with_seed(9)
    assert not sampling.is_plain
    assert sampling.label == "T=0.7 top_p=0.95 top_k=40 frequency_penalty=0.5"
    assert sampling.to_request() == {
        "temperature": 0.7,
        "top_p": 0.95,
        "top_k": 40,
        "frequency_penalty": 0.5,
        "seed": 9,
    }


def test_greedy_with_penalties_is_not_plain():
    sampling = Sampling(repetition_penalty=1.2)
    assert not sampling.is_plain
    assert sampling.label == "greedy repetition_penalty=1.2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -3.0),
    ],
)
def test_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        Sampling(**{name: value})
