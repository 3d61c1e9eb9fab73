from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.endpoint.sse import SSEParser
from ddtree.errors import EndpointError

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n"
    b'id: 7\r\nevent: token\r\ndata: {"text":"one\xe2\x80\xa8two \xf0\x9f\x8c\xb3"}\r\n\r\n'
    b"data: first\rdata:second\rdata\r\r"
    b":\n\n"
    b"retry: 5\ndata:  two spaces\n\n"
    b"event: dropped\n\n"
    b"data: [DONE]\n"
)
EXPECTED = [
    '{"text":"one\u2028two \U0001f333"}',
    "first\nsecond\n",
    " two spaces",
    "[DONE]",
]


def parse(pieces: list[bytes]) -> list[str]:
    parser = SSEParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def test_whole_stream() -> None:
    assert parse([STREAM]) == EXPECTED


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_split_at_every_byte(cut: int) -> None:
    assert parse([STREAM[:cut], STREAM[cut:]]) == EXPECTED


def test_byte_by_byte_with_empty_reads() -> None:
    pieces = [piece for i in range(len(STREAM)) for piece in (STREAM[i : i + 1], b"")]
    assert parse(pieces) == EXPECTED


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_split_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert parse([STREAM[a:b] for a, b in pairwise(edges)]) == EXPECTED


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_line_end_dispatches_at_once(end: bytes) -> None:
    parser = SSEParser()
    assert parser.feed(b"data: x" + end + end) == ["x"]


def test_cr_then_lf_in_the_next_read_is_one_line_end() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\ndata: b\r\n\r\n") == ["a\nb"]


def test_mebibyte_line_in_small_reads() -> None:
    line = b"data: " + b"x" * (1 << 20) + b"\n\n"
    events = parse([line[i : i + 4096] for i in range(0, len(line), 4096)])
    assert [len(event) for event in events] == [1 << 20]


def test_not_utf8_is_an_error() -> None:
    with pytest.raises(EndpointError, match="not UTF-8"):
        SSEParser().feed(b"data: \xff\n")


def test_nothing_left_gives_no_event() -> None:
    assert parse([b"data: a\n\n", b": ping\n"]) == ["a"]
