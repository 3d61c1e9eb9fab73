"""One request as the client saw it: a line of `requests.jsonl`."""

import json
from dataclasses import dataclass
from typing import Any, Literal, Self

Counted = Literal["ids", "usage", "estimate"]


@dataclass(frozen=True)
class RequestRecord:
    """Times are seconds on the client's monotonic clock; None where the event never came.

    `chunk_times_s[i]` is when the i-th chunk that carried tokens arrived, `chunk_tokens[i]` how
    many it carried: a chunk can hold more or less than a round. `error` is None for a request
    that finished; a failed request keeps whatever arrived before it failed and never counts as a
    success. `stats` is the server's own account (`ddtree` object), None where it gave none.

    `planned_s` is when an open loop meant to send it (None in a closed loop): a client that falls
    behind must not hide the wait. `cached_tokens` of the prompt came out of a prefix cache, None
    where the server doesn't say. `counted` says where `chunk_tokens` come from: token ids, the
    usage that each chunk states, or an estimate from the text, made to sum to the stream's usage.
    `text` is the answer's, kept where no ids came or where it was asked for; `thinking` is what the
    server kept apart from it, None where there was nothing of the kind.
    """

    cell: str
    attempt: int
    block: int
    prompt_id: str
    sent_s: float
    chunk_times_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    end_s: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    token_ids: tuple[int, ...]
    error: str | None
    stats: dict[str, Any] | None
    planned_s: float | None = None
    cached_tokens: int | None = None
    counted: Counted = "ids"
    text: str | None = None
    thinking: str | None = None

    def to_json(self) -> str:
        """One line without a newline."""
        return json.dumps(vars(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Inverse of `to_json`."""
        data = json.loads(line)
        for name in ("chunk_times_s", "chunk_tokens", "token_ids"):
            data[name] = tuple(data[name])
        return cls(**data)
