"""Every refusal and failure in OpenAI's error shape."""

import reprlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ddtree.errors import DDTreeError, EngineError, OverloadedError, RequestError

INVALID, SERVER, RATE_LIMIT = "invalid_request_error", "server_error", "rate_limit_exceeded"
# Seconds after which a client refused for load should try again.
_RETRY_S = 1
# What pydantic says of these is no help.
_TEXTS = {
    "missing": "is needed",
    "extra_forbidden": "is no field of this call; leave it out",
    "json_invalid": "is no JSON",
}


class UnknownModelError(RequestError):
    """Another model is asked for than the one served."""


def error_body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error shape."""
    # A message may quote what a client sent, and a lone surrogate can't be sent back.
    text = message.encode("utf-8", "backslashreplace").decode()
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def body_of(error: DDTreeError) -> tuple[int, dict[str, Any]]:
    """Status and body of what went wrong."""
    if isinstance(error, RequestError):
        # logit_bias[7] is in the field logit_bias.
        field = error.field.partition("[")[0]
        if isinstance(error, UnknownModelError):
            return 404, error_body(str(error), INVALID, field, "model_not_found")
        return 400, error_body(str(error), INVALID, field)
    if isinstance(error, OverloadedError):
        return 429, error_body(str(error), RATE_LIMIT, code=RATE_LIMIT)
    status = 503 if isinstance(error, EngineError) else 500
    return status, error_body(str(error), SERVER)


def add_error_handlers(app: FastAPI) -> None:
    """Whatever goes wrong in the application, routes that don't exist included."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        path, message = _describe(error.errors(), error.body)
        message = f"{'.'.join(path) or 'body'}: {message}"
        return JSONResponse(error_body(message, INVALID, _field(path)), 400)

    @app.exception_handler(DDTreeError)
    async def refused(_: Request, error: DDTreeError) -> JSONResponse:
        status, body = body_of(error)
        headers = {"retry-after": str(_RETRY_S)} if status == HTTPStatus.TOO_MANY_REQUESTS else None
        return JSONResponse(body, status, headers)

    @app.exception_handler(HTTPException)
    async def unrouted(call: Request, error: HTTPException) -> JSONResponse:
        message = error.detail
        if error.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            message = f"{call.method} {call.url.path}: {error.detail}; /docs lists the routes"
        return JSONResponse(error_body(message, INVALID), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(f"internal error: {type(error).__name__}", SERVER), 500)


def _describe(errors: Sequence[Mapping[str, Any]], body: Any) -> tuple[list[str], str]:
    """Where the first error is, and what is wrong there.

    A field that may have several forms has an error for each: the one that got furthest is meant.
    """
    first = errors[0]
    if first["type"] == "json_invalid":
        return [], f"{_TEXTS['json_invalid']}: {first['ctx']['error']} at {first['loc'][-1]}"
    paths = [_path(error, body) for error in errors]
    path = max((p for p in paths if p[:1] == paths[0][:1]), key=len)
    found = [error for error, other in zip(errors, paths, strict=True) if other == path]
    texts = dict.fromkeys(_TEXTS.get(error["type"], error["msg"]) for error in found)
    if found[0]["type"] in _TEXTS:
        return path, next(iter(texts))
    return path, f"{'; or '.join(texts)}; got {reprlib.repr(found[0]['input'])}"


def _field(path: Sequence[str]) -> str | None:
    """The field of a place: what holds the culprit, where that has no name of its own."""
    if path[:1] == ["logit_bias"]:
        return path[0]
    while path and path[-1].isdigit():
        path = path[:-1]
    return ".".join(path) or None


def _holds(place: Any, part: str | int) -> bool:
    if isinstance(place, dict):
        return part in place
    return isinstance(place, list) and isinstance(part, int) and part < len(place)


def _path(error: Mapping[str, Any], body: Any) -> list[str]:
    """The error's place as names and indices, without what pydantic adds to tell forms apart."""
    path, place = [], body
    for part in error["loc"][1:]:
        if _holds(place, part):
            place = place[part]
        elif not (error["type"] == "missing" and part == error["loc"][-1]):
            continue
        path.append(str(part))
    return path
