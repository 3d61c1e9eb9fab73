"""Streams in the form of OpenAI's completions, as ours, vLLM and most other servers send them.

Tokens are counted by ids where a chunk carries them, else by the usage that it states, else at the
end by its text, scaled to the stream's usage. A chunk is never counted as a token.
"""

from typing import Any

from ddtree.endpoint.calls import Chat, CompletionRequest, Prompt
from ddtree.endpoint.kinds.accounts import estimated_account, plain_account
from ddtree.endpoint.kinds.counting import shares
from ddtree.endpoint.stream import StreamState
from ddtree.records.sampling import Sampling

_COMMON = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class CompletionsReader:
    """Reads one stream. `method` None where the request names no arm."""

    def __init__(self, request: CompletionRequest) -> None:
        self.method = None if request.arm is None else request.arm.method
        self._keep_text = request.keep_text
        self._told = 0
        self._by_usage = True

    def read(self, payload: dict[str, Any], at_s: float, state: StreamState) -> None:
        """Take a chunk's tokens, then its usage (the last one counts, none is summed)."""
        usage, choices = payload.get("usage"), payload.get("choices") or []
        if usage is not None and not isinstance(usage, dict):
            state.fail("protocol", f"usage is not an object: {str(usage)[:80]}")
        elif not isinstance(choices, list):
            state.fail("protocol", f"choices is not a list: {str(choices)[:80]}")
        elif not all(isinstance(choice, dict) for choice in choices):
            state.fail("protocol", f"a choice is not an object: {str(choices)[:80]}")
        else:
            for choice in choices[:1]:
                self._choice(choice, usage, at_s, state)
            if usage:
                self._keep_usage(usage, state)

    def close(self, state: StreamState) -> None:
        """Settle how many tokens each chunk held, and what the rounds were."""
        total = (state.usage or {}).get("completion_tokens")
        if state.texts:
            self._count_texts(total, state)
        if state.error is None:
            self.account(sum(state.counts), state)

    def account(self, tokens: int, state: StreamState) -> None:
        """State what the rounds were: an estimate, unless the arm says that nothing was drafted."""
        if self.method == "ar":
            state.stats = plain_account(tokens)
        else:
            state.stats = estimated_account(state.counts)

    def no_ids(
        self, text: str, usage: dict[str, Any] | None, at_s: float, state: StreamState
    ) -> None:
        """A chunk without ids: counted by its usage, or kept for the end."""
        told = (usage or {}).get("completion_tokens")
        # Usage stated once text came without any is the stream's, not the chunk's.
        known = type(told) is int and self._by_usage
        count = told - self._told if known and told is not None else 0
        if count < 0:
            state.fail("protocol", f"usage fell from {self._told} to {told} completion tokens")
        elif text and known and not count and state.texts:
            # Text of tokens that an earlier chunk has counted.
            state.texts[-1] += text
        elif text or count:
            self._by_usage &= known
            state.add_text(text, count, at_s)

    def _choice(
        self, choice: dict[str, Any], usage: dict[str, Any] | None, at_s: float, state: StreamState
    ) -> None:
        ids = choice.get("token_ids")
        if self._keep_text:
            state.keep_text(_text(choice), _thinking(choice))
        if ids is not None:
            state.add_ids(ids, at_s)
        else:
            self.no_ids(_thinking(choice) + _text(choice), usage, at_s, state)
        if choice.get("finish_reason") is not None:
            matched = choice.get("matched_stop", choice.get("stop_reason"))
            state.finish(choice["finish_reason"], matched)

    def _keep_usage(self, usage: dict[str, Any], state: StreamState) -> None:
        state.usage = usage
        told = usage.get("completion_tokens")
        if type(told) is int:
            self._told = told
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(cached) is int:
            state.cached_tokens = cached

    def _count_texts(self, total: object, state: StreamState) -> None:
        if state.ids:
            state.fail("protocol", "some chunks carry token_ids and some text without them")
        elif type(total) is not int or total < 0:
            state.fail("no_usage", f"usage.completion_tokens is {total!r}: tokens can't be counted")
        elif not any(state.texts):
            state.fail("count_mismatch", f"{total} tokens in usage and no text")
        elif self._by_usage:
            state.counted = "usage"
        else:
            state.counted = "estimate"
            try:
                state.counts = shares(state.texts, total)
            except ValueError as error:
                state.fail("count_mismatch", str(error))


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _thinking(choice: dict[str, Any]) -> str:
    """What a server with a reasoning parser keeps out of the content; its name differs."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return ""
    text = delta.get("reasoning_content") or delta.get("reasoning")
    return text if isinstance(text, str) else ""


def stream_path(request: CompletionRequest) -> str:
    """The route that takes the request's form of prompt."""
    return "/v1/chat/completions" if isinstance(request.prompt, Chat) else "/v1/completions"


def stream_body(request: CompletionRequest) -> dict[str, Any]:
    """What every completions body holds, sampling left out."""
    return {
        **_prompt(request.prompt),
        "max_tokens": request.max_tokens,
        "stream": True,
        **({"stop": list(request.stop)} if request.stop else {}),
    }


def _prompt(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, Chat):
        turns = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
        template = {"chat_template_kwargs": dict(prompt.template)} if prompt.template else {}
        return {"messages": turns, **template}
    return {"prompt": prompt if isinstance(prompt, str) else list(prompt)}


def every_field(sampling: Sampling) -> dict[str, Any]:
    """The sampling fields that every server has, those at their defaults too, since a server's own
    may come with the model; others where they ask for something."""
    return {name: getattr(sampling, name) for name in _COMMON} | sampling.to_request()
