"""Endings inside an accepted run, on a request that decides as SGLang's does."""

from types import SimpleNamespace

import pytest

from ddtree.sglang_plugin.endings import stops_before_limit

STOP = 9


class Request:
    """What SGLang's request does about endings: the limit first, then stops among new tokens."""

    def __init__(self, tokens: list[int], limit: int) -> None:
        self.output_ids = tokens
        self.sampling_params = SimpleNamespace(max_new_tokens=limit)
        self.to_finish: str | None = None
        self.reason: str | None = None
        self.length: int | None = None

    def finished(self) -> bool:
        return self.reason is not None

    def update(self, new: int) -> None:
        if self.finished():
            return
        if self.to_finish:
            self.reason, self.to_finish = self.to_finish, None
            return
        if len(self.output_ids) >= self.sampling_params.max_new_tokens:
            self.reason, self.length = "length", self.sampling_params.max_new_tokens
            return
        start = len(self.output_ids) - new
        if STOP in self.output_ids[start:]:
            self.reason, self.length = "stop", self.output_ids.index(STOP, start) + 1


def ended(
    tokens: list[int], new: int, limit: int, serving: bool = True
) -> tuple[str | None, int | None]:
    request = Request(tokens, limit)
    stops_before_limit(lambda: serving, Request.update, request, new)
    assert request.output_ids == tokens
    assert request.sampling_params.max_new_tokens == limit
    return request.reason, request.length


@pytest.mark.parametrize(
    ("tokens", "new", "limit", "expected"),
    [
        ([1, 2, 9, 4, 5], 4, 5, ("stop", 3)),
        ([1, 2, 9, 4, 5], 4, 4, ("stop", 3)),
        ([1, 2, 9, 4, 5], 4, 3, ("stop", 3)),
        # The stop lies beyond the limit.
        ([1, 2, 9, 4, 5], 4, 2, ("length", 2)),
        ([1, 2, 3, 4, 5], 4, 4, ("length", 4)),
        ([1, 2, 9, 4, 5], 4, 6, ("stop", 3)),
        ([1, 2, 3, 4, 5], 4, 6, (None, None)),
        # Of an earlier step, which went on: nobody asked for it then.
        ([9, 2, 3, 4, 5], 4, 5, ("length", 5)),
    ],
)
def test_an_answer_ends_where_it_would_token_by_token(
    tokens: list[int], new: int, limit: int, expected: tuple[str | None, int | None]
) -> None:
    assert ended(tokens, new, limit) == expected


def test_other_servers_are_left_alone() -> None:
    assert ended([1, 2, 9, 4, 5], 4, 5, serving=False) == ("length", 5)


def test_an_abort_goes_first() -> None:
    request = Request([1, 9, 3], 3)
    request.to_finish = "abort"
    stops_before_limit(lambda: True, Request.update, request, 3)
    assert request.reason == "abort"
