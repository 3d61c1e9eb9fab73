"""Stop strings in a growing text: where it is cut, and how long text waits."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddtree.models.text import StopStrings, TextStream
from serve.tiny_server import byte_tokenizer

WORDS = st.text("ab", min_size=1, max_size=4)
STOPS = st.lists(WORDS, max_size=3)


def cut(text, stops):
    """By the definition: the first position at which any stop is complete ends the text, at the
    start of the longest stop that is complete there."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - len(max(complete, key=len))], True
    return text, False


@given(st.text("ab", max_size=20), STOPS, st.lists(st.integers(1, 5)))
@example("aab", ["ab"], [2])
@example("abab", ["bab", "abb"], [1])
def test_cut_where_a_stop_is_complete_however_the_text_comes(text, stops, sizes):
    found, given_out, at = StopStrings(stops), "", 0
    for size in [*sizes, len(text)]:
        given_out += "" if found.found else found.push(text[at : at + size])
        at += size
        # Never text that a stop could still take back, and nothing else held.
        expected, stopped = cut(text[:at], stops)
        assert found.found == stopped
        possible = 0 if stopped else longest_start(expected, stops)
        assert given_out == expected[: len(expected) - possible]
    if not found.found:
        given_out += found.finish()
    assert (given_out, found.found) == cut(text, stops)


def longest_start(text, stops):
    """Characters at the end of `text` that begin a stop."""
    starts = [stop[:size] for stop in stops for size in range(1, len(stop))]
    return max((len(start) for start in starts if text.endswith(start)), default=0)


def test_a_stop_that_ends_in_unarmed_text_does_not_count():
    found = StopStrings(["ab", "bcd"])
    assert found.push("xab", armed=False) == "xa"  # "b" may begin "bcd"
    assert not found.found
    assert found.push("c", armed=False) == ""
    assert found.push("d!") == ""
    assert found.found


TEXTS = ["héllo", "🙂 and 👨‍👩‍👧‍👦!", "中文字符", "नमस्ते दुनिया", "a🙂b"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stop", ["🙂b", "‍👩", "文字", "ते", "llo", "zz"])
def test_bytes_stream_as_whole_characters(text, stop):
    """One id per byte: pieces never hold part of a character, and the cut is the text's own."""
    tokenizer = byte_tokenizer()
    ids = list(text.encode())
    stream = TextStream(tokenizer, (), [stop])
    pieces = []
    for at, token in enumerate(ids):
        pieces.append(stream.push([token]))
        whole = bytes(ids[: at + 1]).decode(errors="ignore")
        assert whole.startswith("".join(pieces))
        assert stream.stopped == (stop in whole)
    pieces.append(stream.finish())
    assert "".join(pieces) == re.split(re.escape(stop), text, maxsplit=1)[0]
    grouped = TextStream(tokenizer, (), [stop])
    assert grouped.push(ids) + grouped.finish() == "".join(pieces)
    assert grouped.stopped == stream.stopped


def test_an_unfinished_character_does_not_hold_back_what_precedes_it():
    stream = TextStream(byte_tokenizer())
    assert [stream.push([byte]) for byte in b"a\xf0\x9f"] == ["a", "", ""]
    assert stream.finish() == "\ufffd"


def test_a_token_of_a_letter_and_half_a_character_can_complete_a_stop():
    """The letter is certain, whatever the other half will be."""

    class Halves:
        def decode(self, ids, **options):
            return ("", "P\ufffd", "Pé")[len(ids)]

    stream = TextStream(Halves(), (), ["P"])
    assert stream.push([7]) == ""
    assert stream.stopped


def test_min_tokens_arms_stops():
    """A stop whose last token is among the first `min_tokens` is text like any other."""
    ids = list(b"abab")
    outcomes = []
    for least in range(5):
        stream = TextStream(byte_tokenizer(), (), ["b"], least)
        outcomes.append((stream.push(ids) + stream.finish(), stream.stopped))
    assert outcomes == [("a", True), ("a", True), ("aba", True), ("aba", True), ("abab", False)]


def test_bytes_that_are_no_text_cost_no_more_the_longer_they_go_on():
    """What is decoded again stays short, and the text is the ids' own."""
    tokenizer, sizes = byte_tokenizer(), []

    class Watched:
        def decode(self, ids, **options):
            sizes.append(len(ids))
            return tokenizer.decode(ids, **options)

    ids = [0x80] * 300 + list("🙂é".encode()) + [0xF0, 0x9F] * 100 + [0xC3, 0xA9, 0xC3] * 50
    stream = TextStream(Watched())
    assert stream.push(ids) + stream.finish() == tokenizer.decode(ids)
    assert max(sizes) < 50


@given(
    st.lists(st.sampled_from([0x61, 0x80, 0xC3, 0xA9, 0xF0, 0x9F, 0x99, 0x82, 0xFF]), max_size=80)
)
def test_any_bytes_stream_as_they_decode(ids):
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer)
    assert stream.push(ids) + stream.finish() == tokenizer.decode(ids)


def test_a_character_that_begins_in_the_prompt_is_not_lost():
    stream = TextStream(byte_tokenizer(), [0x61, 0xC3])
    assert stream.push([0xA9, 0x62]) + stream.finish() == "éb"
