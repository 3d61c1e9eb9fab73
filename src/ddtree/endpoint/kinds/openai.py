"""Any other server with OpenAI's completions: text alone, tokens by its usage, rounds estimated."""

from collections.abc import Sequence
from typing import Any, NoReturn

from ddtree.endpoint.calls import CompletionRequest, ScoredPosition
from ddtree.endpoint.kinds.base import Call, Kind
from ddtree.endpoint.kinds.completions import (
    CompletionsReader,
    every_field,
    stream_body,
    stream_path,
)
from ddtree.errors import EndpointError
from ddtree.records.sampling import Sampling

# The sampling fields of OpenAI's own interface: others go out only where they ask for something.
_STANDARD = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")


class OpenAIDialect:
    """A server of which nothing is known but the interface."""

    kind: Kind = "openai"
    can_tokenize = False
    cache_reset: str | None = None
    has_prefix_cache = True
    info_path = "/v1/models"

    def completion(self, request: CompletionRequest) -> Call:
        """The streaming call for a request; what decodes is the server's own affair."""
        fields = every_field(request.sampling)
        standard = {name: fields[name] for name in _STANDARD if name in fields}
        body = stream_body(request) | standard | request.sampling.to_request()
        body["stream_options"] = {"include_usage": True}
        if request.ignore_eos:
            body["ignore_eos"] = True
        return Call(stream_path(request), body)

    def reader(self, request: CompletionRequest) -> CompletionsReader:
        """Reads what the stream has: ids, usage by chunk, or text alone."""
        return CompletionsReader(request)

    def scoring(
        self, token_ids: Sequence[int], score_from: int, rows: int, sampling: Sampling | None
    ) -> NoReturn:
        """EndpointError: the interface gives no scores of a prompt."""
        raise EndpointError("an endpoint of kind openai can't score: differences stay open")

    def scores(
        self, answer: dict[str, Any], token_ids: Sequence[int], score_from: int, *, sampled: bool
    ) -> list[ScoredPosition]:
        """None: there is no call that they could answer."""
        return []

    def describe(self, info: dict[str, Any]) -> dict[str, Any]:
        """The name of its first model."""
        models = info.get("data") or [{}]
        return {"model": models[0].get("id"), "version": None, "reported": info}
