"""How the mock speaks: the events of each kind's stream, from one scripted answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtree.endpoint.kinds import Kind
from ddtree.endpoint.mock_script import MockAnswer, MockFaults


@dataclass(frozen=True)
class MockTalk:
    """The kind of server that the mock plays.

    For kinds other than ddtree `method` is the arm that it was launched with. `incremental`:
    SGLang's chunks carry their own ids instead of all so far. `ids`, `chunk_usage` and `drafts`:
    vLLM's chunks carry token ids, their usage, and at the end the request's drafts. `role_first`:
    an empty chunk comes before the tokens. `reported` is what /server_info says of its arguments.
    """

    kind: Kind = "ddtree"
    method: str = "ar"
    incremental: bool = False
    ids: bool = True
    chunk_usage: bool = True
    drafts: bool = False
    role_first: bool = False
    reported: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """One chunk of an answer: its tokens, their text, and how many came before it."""

    ids: tuple[int, ...]
    text: str
    before: int
    last: bool


class CompletionEvents:
    """OpenAI's form: ours, vLLM's and any other server's."""

    def __init__(
        self,
        talk: MockTalk,
        faults: MockFaults,
        reply: MockAnswer,
        speculation: Mapping[str, Any],
        cached: int | None,
    ) -> None:
        self._talk = talk
        self._faults = faults
        self._reply = reply
        self._speculation = speculation
        self._cached = cached

    def before(self) -> list[dict[str, Any]]:
        """What comes ahead of the tokens."""
        if not self._talk.role_first:
            return []
        empty = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return [{"choices": [empty]}]

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """The event of one chunk."""
        talk, faults = self._talk, self._faults
        ended = piece.last and not faults.omit_finish
        choice: dict[str, Any] = {"index": 0, "text": piece.text, "finish_reason": None}
        if talk.kind == "ddtree" or (talk.kind == "vllm" and talk.ids):
            choice["token_ids"] = list(piece.ids)
        if ended:
            choice["finish_reason"] = faults.finish_reason or self._reply.finish_reason
        if ended and faults.matched_stop is not None:
            choice["stop_reason"] = faults.matched_stop
        event: dict[str, Any] = {"object": "text_completion", "choices": [choice]}
        if talk.kind == "vllm" and talk.chunk_usage:
            event["usage"] = self._usage(piece.before + len(piece.ids))
        if ended and talk.kind == "ddtree":
            event["ddtree"] = {**self._speculation, **self._reply.stats}
        return event

    def after(self) -> list[dict[str, Any]]:
        """What comes behind the tokens."""
        if self._faults.omit_usage:
            return []
        event: dict[str, Any] = {"choices": [], "usage": self._usage(self._total())}
        if self._talk.drafts:
            event["metrics"] = {"speculative_decoding": _drafts(self._reply)}
        return [event]

    def _total(self) -> int:
        return len(self._reply.token_ids) + self._faults.usage_offset

    def _usage(self, completion: int) -> dict[str, Any]:
        prompt = self._reply.stats["prompt_tokens"] + self._faults.prompt_offset
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        cached = {"cached_tokens": self._cached}
        return usage if self._cached is None else usage | {"prompt_tokens_details": cached}


class GenerateEvents:
    """SGLang's /generate."""

    def __init__(
        self, talk: MockTalk, faults: MockFaults, reply: MockAnswer, cached: int | None
    ) -> None:
        self._talk = talk
        self._faults = faults
        self._reply = reply
        self._cached = cached or 0
        self._text = ""

    def before(self) -> list[dict[str, Any]]:
        """Nothing: the first event has tokens."""
        return []

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """The event of one chunk, the last one with the request's account."""
        count = piece.before + len(piece.ids)
        ids: Sequence[int] = piece.ids if self._talk.incremental else self._reply.token_ids[:count]
        self._text = piece.text if self._talk.incremental else self._text + piece.text
        event: dict[str, Any] = {"text": self._text, "output_ids": list(ids)}
        if not self._talk.ids:
            del event["output_ids"]
        if not self._faults.omit_usage:
            event["meta_info"] = self._meta(count, piece.last)
        return event

    def after(self) -> list[dict[str, Any]]:
        """Nothing: the last chunk said it all."""
        return []

    def _meta(self, count: int, last: bool) -> dict[str, Any]:
        meta = {
            "id": "mock",
            "finish_reason": None,
            "prompt_tokens": self._reply.stats["prompt_tokens"] + self._faults.prompt_offset,
            "completion_tokens": count + (self._faults.usage_offset if last else 0),
            "cached_tokens": self._cached,
        }
        if not last or self._faults.omit_finish:
            return meta
        reason: dict[str, Any] = {"type": self._faults.finish_reason or self._reply.finish_reason}
        if self._faults.matched_stop is not None:
            reason["matched"] = self._faults.matched_stop
        meta["finish_reason"] = reason
        return meta if self._talk.method == "ar" else meta | _spec(self._reply)


def _spec(reply: MockAnswer) -> dict[str, Any]:
    histogram = reply.stats["accepted_histogram"]
    rounds, accepted = reply.stats["rounds"], _accepted(reply)
    proposed = rounds * (len(histogram) - 1)
    return {
        "spec_verify_ct": rounds,
        "spec_num_correct_drafts": accepted,
        "spec_num_proposed_drafts": proposed,
        "spec_correct_drafts_histogram": histogram,
        "spec_accept_length": len(reply.token_ids) / rounds if rounds else 0.0,
    }


def _drafts(reply: MockAnswer) -> dict[str, Any]:
    histogram = reply.stats["accepted_histogram"]
    return {
        "num_spec_steps": reply.stats["rounds"],
        "num_accepted_draft_tokens": _accepted(reply),
        "num_draft_tokens": reply.stats["rounds"] * (len(histogram) - 1),
        "acceptance_histogram": histogram,
    }


def _accepted(reply: MockAnswer) -> int:
    return sum(a * n for a, n in enumerate(reply.stats["accepted_histogram"]))


@dataclass
class DraftCounters:
    """What vLLM's /metrics counts: everything since the start, by position besides."""

    rounds: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    by_position: list[int] = field(default_factory=list)

    def add(self, reply: MockAnswer) -> None:
        """Count a finished request."""
        histogram = reply.stats["accepted_histogram"]
        self.rounds += reply.stats["rounds"]
        self.draft_tokens += reply.stats["rounds"] * (len(histogram) - 1)
        self.accepted += _accepted(reply)
        self.by_position += [0] * (len(histogram) - 1 - len(self.by_position))
        for place in range(len(histogram) - 1):
            self.by_position[place] += sum(histogram[place + 1 :])

    def text(self) -> str:
        """Prometheus's format, with labels as vLLM has them."""
        lines = []
        names = {"drafts": self.rounds, "draft_tokens": self.draft_tokens}
        names |= {"accepted_tokens": self.accepted}
        labels = 'engine="0",model_name="mock"'
        for name, value in names.items():
            full = f"vllm:spec_decode_num_{name}"
            lines += [f"# TYPE {full} counter", f"{full}_total{{{labels}}} {float(value)}"]
        full = "vllm:spec_decode_num_accepted_tokens_per_pos"
        lines.append(f"# TYPE {full} counter")
        for place, value in enumerate(self.by_position):
            lines.append(f'{full}_total{{{labels},position="{place}"}} {float(value)}')
        return "\n".join(lines) + "\n"
