"""What a completion stream has said so far, and whether it said it consistently."""

import json
from typing import Any

from ddtree.records.requests import RequestRecord

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
    "no_finish_reason",
    "no_usage",
    "no_stats",
    "count_mismatch",
    "prompt_mismatch",
)
FINISH_REASONS = ("stop", "length")


def error_class(error: str) -> str:
    """The class of a failed record's `error`."""
    return error.partition(":")[0]


class StreamState:
    """Collects one request's events; the first failure stays and nothing after it counts."""

    def __init__(self, prompt: str | tuple[int, ...], max_tokens: int, sent_s: float) -> None:
        self.sent_s = sent_s
        self.error: str | None = None
        self.done = False
        self.last_token_s: float | None = None
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._end_s: float | None = None
        self._times: list[float] = []
        self._counts: list[int] = []
        self._ids: list[int] = []
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._stats: dict[str, Any] | None = None

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
        if data.strip() == "[DONE]":
            self.done = True
            self._end_s = at_s
            return
        try:
            payload = json.loads(data)
        except json.JSONDecodeError as error:
            self.fail("bad_stream", f"event is not JSON ({error}): {data[:80]!r}")
            return
        if not isinstance(payload, dict):
            self.fail("bad_stream", f"event is not an object: {data[:80]!r}")
        elif payload.get("error"):
            self.fail("in_band", _message(payload["error"]))
        else:
            self._payload(payload, at_s)

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
        elif self._usage is None:
            self.fail("no_usage", "the stream ended without a usage chunk")
        elif self._stats is None:
            self.fail("no_stats", "the chunk with finish_reason carries no ddtree object")
        else:
            self._check_counts(self._usage, self._stats)

    def record(self, cell: str, attempt: int, block: int, prompt_id: str) -> RequestRecord:
        """The request as it stands."""
        usage = self._usage or {}
        return RequestRecord(
            cell=cell,
            attempt=attempt,
            block=block,
            prompt_id=prompt_id,
            sent_s=self.sent_s,
            chunk_times_s=tuple(self._times),
            chunk_tokens=tuple(self._counts),
            end_s=self._end_s,
            prompt_tokens=usage.get("prompt_tokens"),
            completion_tokens=usage.get("completion_tokens"),
            finish_reason=self._finish_reason,
            token_ids=tuple(self._ids),
            error=self.error,
            stats=self._stats,
        )

    def _payload(self, payload: dict[str, Any], at_s: float) -> None:
        for name in ("usage", "ddtree"):
            if not isinstance(payload.get(name), dict | None):
                self.fail("protocol", f"{name} is not an object: {str(payload[name])[:80]}")
                return
        choices = payload.get("choices") or []
        if not isinstance(choices, list):
            self.fail("protocol", f"choices is not a list: {str(choices)[:80]}")
            return
        for choice in choices:
            if not isinstance(choice, dict):
                self.fail("protocol", f"a choice is not an object: {str(choice)[:80]}")
                return
            self._choice(choice, at_s)
        self._usage = payload.get("usage") or self._usage
        self._stats = payload.get("ddtree") or self._stats

    def _choice(self, choice: dict[str, Any], at_s: float) -> None:
        ids = choice.get("token_ids")
        if ids is None and choice.get("text"):
            self.fail("bad_stream", "chunk has text but no token_ids; tokens can't be counted")
        elif ids is not None and not _are_ids(ids):
            self.fail("protocol", f"token_ids is not a list of integers: {str(ids)[:80]}")
        elif ids and self._finish_reason is not None:
            self.fail("bad_stream", f"{len(ids)} tokens after the chunk with finish_reason")
        elif ids:
            self._times.append(at_s)
            self._counts.append(len(ids))
            self._ids.extend(ids)
            self.last_token_s = at_s
        if self.error is None and choice.get("finish_reason") is not None:
            self._finish_reason = str(choice["finish_reason"])

    def _check_counts(self, usage: dict[str, Any], stats: dict[str, Any]) -> None:
        seen = len(self._ids)
        told = {
            "usage.completion_tokens": usage.get("completion_tokens"),
            "ddtree.completion_tokens": stats.get("completion_tokens"),
        }
        for name, value in told.items():
            if value != seen:
                self.fail("count_mismatch", f"{seen} token ids arrived, {name} is {value}")
        if stats.get("token_ids", self._ids) != self._ids:
            self.fail("count_mismatch", "ddtree.token_ids differ from the ids in the chunks")
        if seen > self._max_tokens:
            self.fail("count_mismatch", f"{seen} tokens, max_tokens was {self._max_tokens}")
        if seen == 0:
            self.fail("count_mismatch", "no tokens")
        planned = None if isinstance(self._prompt, str) else len(self._prompt)
        if planned is not None and usage.get("prompt_tokens") != planned:
            self.fail(
                "prompt_mismatch",
                f"sent {planned} tokens, usage.prompt_tokens is {usage.get('prompt_tokens')}",
            )


def _are_ids(value: object) -> bool:
    # bool is a kind of int, but no token id.
    return isinstance(value, list) and all(type(item) is int for item in value)


def _message(error: object) -> str:
    if isinstance(error, dict):
        return str(error.get("message", error))
    return str(error)


def error_text(raw: bytes, limit: int = 300) -> str:
    """What an error response says, cut to `limit` characters."""
    text = raw.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return text[:limit]
    error = data.get("error", data) if isinstance(data, dict) else data
    return _message(error)[:limit]
