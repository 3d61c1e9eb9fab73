"""Stop strings inside accepted runs end a request where decoding token by token would."""

import pytest

from ddtree.engine import Engine, EngineConfig, SamplingParams, Speculation
from ddtree.errors import RequestError
from serve.tiny_server import EOS, VOCABULARY, byte_tokenizer
from support.drafts import oracle, with_drafts
from support.tiny import tiny_drafter, tiny_target

METHODS = (Speculation("ar"), Speculation("chain"), Speculation("ddtree", 8, 4))
PROMPT = list(b"def f(x):")
COUNT = 40


@pytest.fixture(scope="module")
def target():
    return tiny_target(vocab_size=VOCABULARY, eos_token_id=EOS)


@pytest.fixture(scope="module")
def output(target):
    engine = Engine(target, None, EngineConfig(max_context=80))
    sampling = SamplingParams(COUNT, ignore_eos=True)
    return engine.generate([PROMPT], sampling, Speculation("ar"))[0].output


def generate(target, output, sampling, method):
    config = EngineConfig(max_context=80)
    engine = Engine(target, tiny_drafter(target), config, None, byte_tokenizer())
    with_drafts(engine, oracle({tuple(PROMPT): output}, 4, VOCABULARY))
    return engine.generate([PROMPT], sampling, method)[0]


@pytest.mark.parametrize("method", METHODS, ids=lambda s: s.method)
def test_a_stop_string_ends_the_output_with_its_last_token(target, output, method):
    """Every stop of one to three consecutive characters of the text, at every place in a run."""
    tokenizer = byte_tokenizer()
    text = tokenizer.decode(output)
    stops = {text[a : a + n] for n in (1, 2, 3) for a in range(0, len(text) - n, 4)}
    cuts = set()
    for stop in (s for s in stops if "\ufffd" not in s):
        texts = [tokenizer.decode(output[: n + 1]) for n in range(COUNT)]
        last = next(n for n, seen in enumerate(texts) if stop in seen.rstrip("\ufffd"))
        sampling = SamplingParams(COUNT, ignore_eos=True, stop=("no such text", stop))
        request = generate(target, output, sampling, method)
        assert (request.output, request.finish_reason) == (output[: last + 1], "stop")
        cuts.add(request.stats.cut_tokens)
        assert request.stats.completion_tokens == last + 1
    assert method.method == "ar" or max(cuts) > 0  # some stops lie inside a run


def test_stop_tokens_and_limits_come_first(target, output):
    stop = byte_tokenizer().decode(output).replace("\ufffd", "")[-1]
    sampling = SamplingParams(2, ignore_eos=True, stop=(stop,))
    assert generate(target, output, sampling, METHODS[0]).finish_reason == "length"


@pytest.mark.parametrize("method", METHODS, ids=lambda s: s.method)
def test_min_tokens_holds_for_stop_strings(target, output, method):
    alphabet = tuple(chr(code) for code in range(128))
    for least in (0, 1, 5, 20):
        sampling = SamplingParams(COUNT, ignore_eos=True, stop=alphabet, min_tokens=least)
        request = generate(target, output, sampling, method)
        assert request.finish_reason == "stop"
        first = next(n for n in range(max(least, 1) - 1 + bool(least), COUNT) if output[n] < 128)
        assert len(request.output) == first + 1


def test_refused(target):
    engine = Engine(target, None, EngineConfig(max_context=80))
    with pytest.raises(RequestError, match="stop: needs a tokenizer"):
        engine.make_request(PROMPT, SamplingParams(stop=("a",)))
    for stop in (("",), ("a", ""), (3,)):
        with pytest.raises(RequestError, match="stop: got"):
            SamplingParams(stop=stop)
