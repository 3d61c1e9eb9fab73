"""Sampling as requests spell it."""

import dataclasses
import math

import pytest
from pydantic import ValidationError

from ddtree.engine import SamplingParams
from ddtree.errors import ConfigError, RequestError
from ddtree.records.sampling import Sampling
from ddtree.serve.schema import CompletionRequest


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


def test_lists_are_kept_in_order_and_sent_as_json_has_them():
    sampling = Sampling(
        logit_bias=((7, -2.0), (3, 1.5)), bad_words=("no", "never, ever"), min_tokens=4
    )
    same = Sampling(logit_bias=((3, 1.5), (7, -2.0)), bad_words=("no", "never, ever"), min_tokens=4)
    assert sampling == same
    assert hash(sampling) == hash(same)
    assert not sampling.is_plain
    assert sampling.label == (
        "greedy logit_bias=3:1.5,7:-2 bad_words='no','never, ever' min_tokens=4"
    )
    assert sampling.to_request() == {
        "temperature": 0.0,
        "logit_bias": {"3": 1.5, "7": -2.0},
        "bad_words": ["no", "never, ever"],
        "min_tokens": 4,
    }


def test_where_the_text_ends_changes_no_token():
    sampling = Sampling(stop_token_ids=(5, 6))
    assert sampling.is_plain
    assert sampling.label == "greedy stop_token_ids=5,6"
    assert sampling.to_request() == {"temperature": 0.0, "stop_token_ids": [5, 6]}


def test_a_label_counts_what_would_make_it_long():
    assert Sampling(bad_words=tuple("abcde")).label == "greedy bad_words=[5]"


def test_keep_all_has_one_spelling():
    assert Sampling(0.7, top_k=-1) == Sampling(0.7, top_k=0)


OUT_OF_RANGE = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", True),
    pytest.param("temperature", 10**400, id="temperature-no float"),
    pytest.param("temperature", 10**5000, id="temperature-no digits"),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", True),
    ("top_k", 2**63),
    ("min_p", 1.5),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 0.001),
    ("presence_penalty", 3.0),
    ("frequency_penalty", -3.0),
    ("seed", -5),
    ("seed", 2**64),
    ("seed", 1.0),
    ("min_tokens", -1),
    ("min_tokens", 2.0),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_records_engine_and_server_refuse_the_same(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: got .*, expected "):
        Sampling(**{name: value})
    with pytest.raises(RequestError, match=f"^{name}: got .*, expected "):
        SamplingParams(**{name: value})
    with pytest.raises((ValidationError, RequestError), match=name):
        CompletionRequest(prompt="x", **{name: value})


EDGES = [
    ("temperature", 0),
    ("temperature", 1e308),
    ("top_p", 1),
    ("top_p", 1e-9),
    ("top_k", -1),
    ("top_k", 2**63 - 1),
    ("min_p", 1.0),
    ("repetition_penalty", 0.01),
    ("presence_penalty", -2),
    ("frequency_penalty", 2.0),
    ("seed", 2**63 - 1),
    ("min_tokens", 128),
]


@pytest.mark.parametrize(("name", "value"), EDGES)
def test_records_engine_and_server_take_the_same(name, value):
    Sampling(**{name: value})
    SamplingParams(**{name: value})
    CompletionRequest(prompt="x", **{name: value})


def test_the_message_names_what_is_allowed():
    with pytest.raises(ConfigError, match=r"got inf, expected a finite number of at least 0$"):
        Sampling(math.inf)
    with pytest.raises(ConfigError, match="got an integer of 1329 bits, expected a finite number"):
        Sampling(10**400)
    with pytest.raises(ConfigError, match=r"expected a finite number above 0 and at most 1$"):
        Sampling(top_p=2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias: got -1"),
        ({"logit_bias": ((3, 101.0),)}, r"logit_bias\[3\]: got 101"),
        ({"logit_bias": ((3, math.nan),)}, r"logit_bias\[3\]: got nan"),
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, "each token once"),
        ({"bad_words": ("a", "")}, "bad_words"),
        ({"stop_token_ids": (1, -2)}, "stop_token_ids: got -2"),
    ],
)
def test_lists_are_checked(fields, words):
    with pytest.raises(ConfigError, match=words):
        Sampling(**fields)


def test_lists_of_a_file_are_the_same_sampling():
    given = Sampling(logit_bias=[[5, 1.0], [2, -1.0]], bad_words=["no"], stop_token_ids=[7])
    assert given == Sampling(
        logit_bias=((2, -1.0), (5, 1.0)), bad_words=("no",), stop_token_ids=(7,)
    )
    assert hash(given) == hash(Sampling(**dataclasses.asdict(given)))
