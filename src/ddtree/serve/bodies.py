"""Reading a body: JSON in UTF-8, said to be JSON, or a refusal in words."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute


class JsonRequest(Request):
    """Parses its body as JSON has it: UTF-8 alone, and no deeper than the parser can go."""

    async def json(self) -> Any:
        """The body; json.JSONDecodeError, or HTTPException 400 for what is no JSON text."""
        try:
            # Given bytes, the parser would guess an encoding and let lone surrogates through.
            return json.loads((await self.body()).decode())
        except UnicodeDecodeError as error:
            reason = f"is no UTF-8 ({error.reason} at byte {error.start})"
        except RecursionError:
            reason = "is nested too deep"
        except json.JSONDecodeError:
            raise
        except ValueError:
            reason = "holds a number with too many digits"
        raise HTTPException(400, f"body: {reason}; send plain JSON")


class JsonRoute(APIRoute):
    """A route whose body, if it takes one, is JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The usual handler behind the check of the content type."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            if self.body_field is not None and not _says_json(request):
                raise HTTPException(
                    415,
                    f"got content-type {request.headers.get('content-type')!r}; "
                    "send content-type: application/json",
                )
            return await handle(JsonRequest(request.scope, request.receive))

        return checked


def _says_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )
