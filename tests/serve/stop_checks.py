"""What stop strings and whole characters promise, as checks of a scripted server."""

from scripted import PROMPT

# Text, stops, and the text of each chunk: one token in each, then runs of three behind the first.
HELD_BACK = [
    ("abcdefg", ["cdx"], ["a", "b", "", "", "cde", "f", "g", ""], ["a", "b", "cdefg", ""]),
    ("abcdefg", ["cd"], ["a", "b", "", ""], ["a", "b"]),
    ("abcdefg", ["c"], ["a", "b", ""], ["a", "b"]),
    ("abcdefg", ["fg"], ["a", "b", "c", "d", "e", "", ""], ["a", "bcd", "e"]),
    # Nothing more comes, so that what was held back is text.
    ("abcdef", ["efg"], ["a", "b", "c", "d", "", "", "ef"], ["a", "bcd", "ef"]),
    # A beginning inside of another; the first to be complete ends the text.
    ("xabdyz", ["abc", "bd"], ["x", "", "", "a"], ["x", "a"]),
    ("xabcyz", ["abcd", "bc"], ["x", "", "", "a"], ["x", "a"]),
    ("xababac", ["abac"], ["x", "", "", "", "ab", "", ""], ["x", "", "ab"]),
    ("aaab", ["aab"], ["", "", "a", ""], ["", "a"]),
    # Two complete at the same character: the text ends before the longer one.
    ("xaby", ["b", "ab"], ["x", "", ""], ["x", ""]),
]
# Characters of several bytes, and several characters that are seen as one.
WHOLE = ["é", "漢字かな", "😀🎉", "👨‍👩‍👧‍👦", "🇫🇷🏳️‍🌈", "नमस्ते दुनिया", "a\u0301 ok"]


def check_chunks_hold_back_what_may_stop(server):
    for text, stops, singles, runs in HELD_BACK:
        for right, expected in ((0, singles), (2, runs)):
            events = server.chunks(text, right, stop=stops)
            found = [event["choices"][0]["text"] for event in events]
            assert found == expected, (text, stops, right)


def check_a_stop_ends_ids_and_text(server):
    """The ids that spelled it stay; text, usage and log-probabilities agree, streamed and not."""
    for text, stops, singles, _ in HELD_BACK:
        complete = any(stop in text for stop in stops)
        count = len(singles) if complete else len(text) + 1
        for right in (0, 1, 4):
            whole = server.ask(text, right, stop=stops, logprobs=1, return_stats=True)
            choice = whole["choices"][0]
            assert choice["text"] == "".join(singles)
            assert choice["finish_reason"] == "stop"
            assert choice["token_ids"] == [*text.encode(), 256][:count]
            assert whole["usage"]["completion_tokens"] == count
            assert {len(values) for values in choice["logprobs"].values()} == {count}
            # Offsets are those of the text before it was cut.
            assert choice["logprobs"]["text_offset"] == list(range(count))
            stats = whole["ddtree"]
            accepted = sum(a * n for a, n in enumerate(stats["accepted_histogram"]))
            assert 1 + accepted + stats["rounds"] - stats["cut_tokens"] == count
            check_a_stream_is_the_whole(server, text, right, stop=stops, logprobs=1)


def check_a_stream_is_the_whole(server, text, right, **fields):
    (choice,) = server.ask(text, right, **fields)["choices"]
    pieces = [event["choices"][0] for event in server.chunks(text, right, **fields)]
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    assert [i for piece in pieces for i in piece["token_ids"]] == choice["token_ids"]
    assert [p["finish_reason"] for p in pieces if p["finish_reason"]] == [choice["finish_reason"]]
    if choice["logprobs"] is not None:
        tokens = [token for piece in pieces for token in piece["logprobs"]["tokens"]]
        assert tokens == choice["logprobs"]["tokens"]
        assert len(tokens) == len(choice["token_ids"])


def check_characters_are_never_split(server):
    for text in WHOLE:
        for right in (0, 1, 4):
            events = server.chunks(text, right)
            pieces = [event["choices"][0]["text"] for event in events]
            assert "".join(pieces) == text
            assert not any("\ufffd" in piece for piece in pieces)


def check_stops_of_such_characters(server):
    """One or two of a text's characters as the stop, and one that only begins like the text."""
    for text in WHOLE:
        half = len(text) // 2
        for stop in (text[half : half + 2], text[-1]):
            for right in (0, 4):
                events = server.chunks(text, right, stop=[stop, text[0] + "\U0001f4a9"])
                pieces = [event["choices"][0]["text"] for event in events]
                assert "".join(pieces) == text[: text.index(stop)], (text, stop, right)
                ids = [i for event in events for i in event["choices"][0]["token_ids"]]
                assert bytes(ids).decode() == text[: text.index(stop) + len(stop)]


def check_min_tokens_hold_a_stop_off(server):
    """A stop that is complete too early is text; the same with runs across the border."""
    ends = ((0, ""), (1, ""), (2, "abc"), (4, "abc"), (5, "abcabc"), (8, "abcabcab"))
    for right in (0, 1, 3):
        for least, expected in ends:
            found = server.ask("abcabcab", right, stop="ab", min_tokens=least)["choices"][0]
            assert found["text"] == expected, (right, least)


def check_echo_opens_the_text(server):
    """And is no text in which a stop could be found."""
    (choice,) = server.ask("xab", stop="xa", echo=True)["choices"]
    assert choice["text"] == "x"
    first, *rest = server.chunks("abc", stop="xa", echo=True)
    assert (first["choices"][0]["text"], first["choices"][0]["token_ids"]) == ("x", [])
    assert [event["choices"][0]["text"] for event in rest] == ["a", "b", "c", ""]
    assert bytes(PROMPT).decode() == "x"


def check_a_chat_stops_alike(server):
    for right in (0, 2):
        whole, (opening, *events) = server.chat("naïve 😀!", right, stop=["x", "ve 😀"])
        (choice,) = whole["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("naï", "stop")
        assert choice["token_ids"] == list("naïve 😀".encode())
        assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        pieces = [event["choices"][0] for event in events]
        assert "".join(piece["delta"]["content"] for piece in pieces) == "naï"
        assert [i for piece in pieces for i in piece["token_ids"]] == choice["token_ids"]


CHECKS = [
    check_a_chat_stops_alike,
    check_chunks_hold_back_what_may_stop,
    check_a_stop_ends_ids_and_text,
    check_characters_are_never_split,
    check_stops_of_such_characters,
    check_min_tokens_hold_a_stop_off,
    check_echo_opens_the_text,
]
