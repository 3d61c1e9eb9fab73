"""Streamed text: never a split character, and the same as the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.errors import ModelError
from ddtree.models.compat import load_tokenizer
from ddtree.models.text import TextStream, encode_chat

pytestmark = pytest.mark.model

TEXTS = [
    "plain words, and   spaces",
    "emoji 🙂 and a family 👨‍👩‍👧‍👦 and a flag 🇩🇪",
    "中文字符 and हिन्दी and ไทย",
    "def f(x):\n\treturn x  # café",
]


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return load_tokenizer(smollm2.target)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pieces_join_to_the_text(tokenizer, text, size):
    ids = tokenizer(text).input_ids
    stream = TextStream(tokenizer)
    pieces = [stream.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    pieces.append(stream.finish())
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_random_ids_stream_as_they_decode(tokenizer):
    @given(st.lists(st.integers(17, 49151), max_size=12))
    def check(ids):
        stream = TextStream(tokenizer)
        text = "".join([*(stream.push([i]) for i in ids), stream.finish()])
        assert text == tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    check()


def test_an_unfinished_character_comes_out_at_the_end(tokenizer):
    ids = tokenizer("🙂").input_ids[:-1]
    stream = TextStream(tokenizer)
    assert [stream.push([i]) for i in ids] == [""] * len(ids)
    assert "\ufffd" in stream.finish()


def test_chat_template(tokenizer):
    ids = encode_chat(tokenizer, [{"role": "user", "content": "Hi"}])
    text = tokenizer.decode(ids)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_no_chat_template(tokenizer):
    class Plain:
        chat_template = None

    with pytest.raises(ModelError, match="chat template"):
        encode_chat(Plain(), [{"role": "user", "content": "Hi"}])
