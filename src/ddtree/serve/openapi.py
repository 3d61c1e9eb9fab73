"""The OpenAPI document: the server's own errors, and none that FastAPI would add."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from ddtree.serve.answers import ErrorAnswer, Unhealthy

Responses = dict[int | str, dict[str, Any]]

_ERRORS = {
    400: "A field that can't be served; `param` names it",
    401: "No key, or a wrong one, where the server has keys",
    404: "Another model than the one served",
    408: "A body that did not arrive in time",
    413: "A body beyond the server's limit",
    415: "A body that is not said to be JSON",
    429: "The queue is full; `retry-after` says when to come again",
    503: "The engine has stopped, or the server shuts down",
}
_EVENTS = {
    "schema": {"type": "string"},
    "example": 'data: {"id": "cmpl-1", "object": "text_completion", ...}\n\ndata: [DONE]\n\n',
}


UNHEALTHY: Responses = {503: {"model": Unhealthy, "description": "The engine can't be relied on"}}


def describe(model: type[BaseModel] | None, *statuses: int, streams: bool = False) -> Responses:
    """A route's `responses`: 200 with `model`, and errors with these statuses."""
    found: Responses = {
        status: {"model": ErrorAnswer, "description": _ERRORS[status]} for status in statuses
    }
    if model is None:
        return found
    whole: dict[str, Any] = {"model": model}
    if streams:
        whole["description"] = (
            "The answer in one piece, or with `stream: true` server-sent events: chunks, then "
            "`[DONE]`; a failure after the first is an event with `error`"
        )
        whole["content"] = {"text/event-stream": _EVENTS}
    return found | {200: whole}


def text_answer(media_type: str) -> Responses:
    """A route that answers with text."""
    return {200: {"content": {media_type: {"schema": {"type": "string"}}}}}


def document(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Makes the document when it is first asked for."""

    def make() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _without_422(
                get_openapi(title=app.title, version=app.version, routes=app.routes)
            )
        return app.openapi_schema

    return make


def _without_422(found: dict[str, Any]) -> dict[str, Any]:
    """What can't be validated is a 400 here."""
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        found["components"]["schemas"].pop(name, None)
    return found
