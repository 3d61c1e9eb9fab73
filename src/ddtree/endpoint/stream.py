"""What a completion stream has said so far, and whether it said it consistently.

How a payload is spelled is the reader's business (`ddtree.endpoint.kinds`); what must hold of any
stream is checked here.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

import orjson

from ddtree.endpoint.calls import Prompt
from ddtree.records.requests import Counted, RequestRecord

# A failed record's `error` is "class: detail"; refused requests have class http_<status>.
ERROR_CLASSES = (
    "connect",
    "in_band",
    "timeout_first_token",
    "timeout_silence",
    "timeout_total",
    "broken_stream",
    "bad_stream",
    "protocol",
    "nan",
    "no_finish_reason",
    "no_usage",
    "no_stats",
    "count_mismatch",
    "prompt_mismatch",
)
FINISH_REASONS = ("stop", "length")
# SGLang ends a request whose logits are NaN as if a stop string of this text had matched.
_NAN = "nan happened"


def error_class(error: str) -> str:
    """The class of a failed record's `error`."""
    return error.partition(":")[0]


class Reader(Protocol):
    """Reads one stream's payloads, in the dialect of a kind of server. One per request."""

    def read(self, payload: dict[str, Any], at_s: float, state: "StreamState") -> None:
        """Take what one event says."""
        ...

    def close(self, state: "StreamState") -> None:
        """The stream ended in order and stated its usage: settle counts and stats."""
        ...


class StreamState:
    """Collects one request's events; the first failure stays and nothing after it counts."""

    def __init__(
        self,
        prompt: Prompt,
        max_tokens: int,
        sent_s: float,
        reader: Reader,
    ) -> None:
        self.sent_s = sent_s
        self.error: str | None = None
        self.done = False
        self.last_token_s: float | None = None
        self.usage: dict[str, Any] | None = None
        self.stats: dict[str, Any] | None = None
        self.cached_tokens: int | None = None
        self.counted: Counted = "ids"
        self.counts: list[int] = []
        self.texts: list[str] = []
        self.ids: list[int] = []
        # Takes what arrived and waits to be read.
        self.catch_up: Callable[[], None] = lambda: None
        self._kept: tuple[list[str], list[str]] | None = None
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._reader = reader
        self._end_s: float | None = None
        self._times: list[float] = []
        self._finish_reason: str | None = None

    @property
    def over(self) -> bool:
        """True when nothing more need be read."""
        return self.done or self.error is not None

    def fail(self, kind: str, detail: str) -> None:
        """Mark the request as failed, unless it already is."""
        if self.error is None:
            self.error = f"{kind}: {detail}"

    def event(self, data: str, at_s: float) -> None:
        """Take the data of one event that arrived at `at_s`."""
        if data[:1] != "{" and data.strip() == "[DONE]":
            self.done = True
            self._end_s = at_s
            return
        try:
            payload = _decode(data)
        except (ValueError, RecursionError) as error:
            self.fail("bad_stream", f"event is not JSON ({error}): {data[:80]!r}")
            return
        if not isinstance(payload, dict):
            self.fail("bad_stream", f"event is not an object: {data[:80]!r}")
        elif payload.get("error"):
            self.fail("in_band", _message(payload["error"]))
        elif payload.get("object") == "error":
            self.fail("in_band", _message(payload))
        else:
            self._reader.read(payload, at_s, self)

    def add_ids(self, ids: object, at_s: float) -> None:
        """A chunk's token ids, none of which came before."""
        if not are_ids(ids):
            self.fail("protocol", f"token_ids is not a list of integers: {str(ids)[:80]}")
        elif ids and self._may_add(ids):
            self.ids.extend(ids)
            self._stamp(len(ids), at_s)

    def add_text(self, text: str, count: int, at_s: float) -> None:
        """A chunk that came without ids; `count` is what is known of its tokens, or 0."""
        if self._may_add(text):
            self.texts.append(text)
            self._stamp(count, at_s)

    def keep_text(self, content: str, thinking: str) -> None:
        """Text of a chunk to keep beside its ids; `thinking` came apart from the content."""
        self._kept = self._kept or ([], [])
        self._kept[0].append(content)
        self._kept[1].append(thinking)

    def finish(self, reason: object, matched: object = None) -> None:
        """The server's reason to end; `matched` is the stop that it names, if any."""
        if isinstance(matched, str) and matched.lower() == _NAN:
            self.fail("nan", "the server's logits were not numbers (stop reason 'NaN happened')")
        elif self.error is None:
            self._finish_reason = str(reason)

    def ended(self, at_s: float) -> None:
        """The connection closed in order; a stream without [DONE] ends here."""
        if self._end_s is None:
            self._end_s = at_s

    def check_complete(self) -> None:
        """Fail the request unless its stream was whole and its counts agree."""
        if self.error is not None:
            return
        if self._finish_reason not in FINISH_REASONS:
            self.fail("no_finish_reason", f"got {self._finish_reason!r}, expected stop or length")
        elif self.usage is None:
            self.fail("no_usage", "the stream ended without a usage chunk")
        else:
            self._reader.close(self)
            self._check_counts(self.usage, self.stats or {})

    def record(self, cell: str, attempt: int, block: int, prompt_id: str) -> RequestRecord:
        """The request as it stands."""
        usage = self.usage or {}
        return RequestRecord(
            cell=cell,
            attempt=attempt,
            block=block,
            prompt_id=prompt_id,
            sent_s=self.sent_s,
            chunk_times_s=tuple(self._times),
            chunk_tokens=tuple(self.counts),
            end_s=self._end_s,
            prompt_tokens=usage.get("prompt_tokens"),
            completion_tokens=usage.get("completion_tokens"),
            finish_reason=self._finish_reason,
            token_ids=tuple(self.ids),
            error=self.error,
            stats=self.stats,
            cached_tokens=self.cached_tokens,
            counted=self.counted,
            text=self._text(),
            thinking=None if self._kept is None else "".join(self._kept[1]) or None,
        )

    def _text(self) -> str | None:
        if self._kept is not None:
            return "".join(self._kept[0])
        return "".join(self.texts) if self.texts else None

    def _may_add(self, what: str | list[int]) -> bool:
        if self.error is None and self._finish_reason is not None:
            name = f"text {what[:40]!r}" if isinstance(what, str) else f"{len(what)} tokens"
            self.fail("bad_stream", f"{name} after the chunk with finish_reason")
        return self.error is None

    def _stamp(self, count: int, at_s: float) -> None:
        self._times.append(at_s)
        self.counts.append(count)
        self.last_token_s = at_s

    def _check_counts(self, usage: dict[str, Any], stats: dict[str, Any]) -> None:
        seen = sum(self.counts)
        told = {
            "usage.completion_tokens": usage.get("completion_tokens"),
            "stats.completion_tokens": stats.get("completion_tokens", seen),
        }
        for name, value in told.items():
            if value != seen:
                self.fail("count_mismatch", f"{seen} tokens arrived, {name} is {value}")
        if stats.get("token_ids", self.ids) != self.ids:
            self.fail("count_mismatch", "stats.token_ids differ from the ids in the chunks")
        if seen > self._max_tokens:
            self.fail("count_mismatch", f"{seen} tokens, max_tokens was {self._max_tokens}")
        if seen == 0:
            self.fail("count_mismatch", "no tokens")
        planned = len(self._prompt) if isinstance(self._prompt, tuple) else None
        if planned is not None and usage.get("prompt_tokens") != planned:
            self.fail(
                "prompt_mismatch",
                f"sent {planned} tokens, usage.prompt_tokens is {usage.get('prompt_tokens')}",
            )


def are_ids(value: object) -> TypeGuard[list[int]]:
    """Whether this is a list of token ids."""
    # bool is a kind of int, but no token id.
    return isinstance(value, list) and set(map(type, value)) <= {int}


def _decode(data: str) -> Any:
    """JSON as the standard library reads it, which is asked where the fast reader balks: at NaN,
    lone surrogates and numbers beyond 64 bits."""
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)


def _message(error: object) -> str:
    if isinstance(error, dict):
        return str(error.get("message", error))
    return str(error)


def error_text(raw: bytes, limit: int = 300) -> str:
    """What an error response says, cut to `limit` characters."""
    text = raw.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except ValueError:
        return text[:limit]
    error = data.get("error", data) if isinstance(data, dict) else data
    return _message(error)[:limit]
