"""How a function becomes an address of the API: it returns a view, which is encoded as it is; and what it returns is in
the OpenAPI document, made from the same types. A shape is said once, in coordinator/views.py."""

from __future__ import annotations

import functools
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ParamSpec

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response, StreamingResponse

from coordinator.web.problems import MEDIA_TYPE, Problem

P = ParamSpec("P")
PREFIX = "/api/v1"
REFERENCE = "#/components/schemas/{name}"
ENCODER = msgspec.json.Encoder()
TITLES = {
    400: "The request contradicts itself.",
    401: "A token is needed.",
    403: "The token may not do this, or a foreign page asks.",
    404: "There is no such thing.",
    405: "There is no such method.",
    409: "The log no longer has what is asked for.",
    413: "The request is too large.",
    415: "JSON is needed.",
    421: "The server is not called so.",
    422: "The request can't be understood.",
    503: "The log has not been read so far, or can't be.",
}
EVERYWHERE = (401, 421, 422, 503)
EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}


class Contract:
    """The addresses of the API, and the shapes of their answers."""

    def __init__(self) -> None:
        self.router = APIRouter(prefix=PREFIX)
        self.shapes: list[Any] = [Problem]

    def get(self, path: str, *problems: int, tag: str) -> Callable[[Callable[P, Awaitable[Any]]], Any]:
        """The decorated function's return type is the shape of the answer."""
        return self._route("GET", path, problems, tag, 200, None)

    def post(
        self, path: str, *problems: int, tag: str, status: int, takes: Any
    ) -> Callable[[Callable[P, Awaitable[Any]]], Any]:
        return self._route("POST", path, problems, tag, status, takes)

    def stream(self, path: str, *problems: int, tag: str) -> Callable[[Callable[P, Awaitable[Any]]], Any]:
        """Server-sent events."""
        return self._route("GET", path, problems, tag, 200, None)

    def _route(
        self, method: str, path: str, problems: Iterable[int], tag: str, status: int, takes: Any
    ) -> Callable[[Callable[P, Awaitable[Any]]], Any]:
        def decorate(answers: Callable[P, Awaitable[Any]]) -> Any:
            shape = typing.get_type_hints(answers, include_extras=True)["return"]
            extra = {}
            if takes is not None:
                extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": self.of(takes)}}}

            @functools.wraps(answers)
            async def answered(*args: P.args, **kwargs: P.kwargs) -> Response:
                found = await answers(*args, **kwargs)
                return found if isinstance(found, Response) else json_answer(found, status)

            self.router.add_api_route(
                path,
                answered,
                methods=[method],
                response_model=None,
                status_code=status,
                tags=[tag],
                operation_id=answers.__name__,
                summary=(answers.__doc__ or "").split("\n")[0].strip(),
                description=" ".join((answers.__doc__ or "").split()),
                responses=self._responses(status, shape, problems),
                openapi_extra=extra or None,
            )
            return answers

        return decorate

    def _responses(self, status: int, shape: Any, problems: Iterable[int]) -> dict[int | str, dict[str, Any]]:
        said = EVENTS if shape is StreamingResponse else {"application/json": {"schema": self.of(shape)}}
        found: dict[int | str, dict[str, Any]] = {status: {"description": "What was asked for.", "content": said}}
        problem = {MEDIA_TYPE: {"schema": self.of(Problem)}}
        for code in sorted({*EVERYWHERE, *problems}):
            found[code] = {"description": TITLES[code], "content": problem}
        return found

    def of(self, shape: Any) -> dict[str, Any]:
        """The schema of a type, as a reference; the type is among the components from now on."""
        if shape not in self.shapes:
            self.shapes.append(shape)
        (reference,), _ = msgspec.json.schema_components([shape], ref_template=REFERENCE)
        return reference


def install(app: FastAPI, contracts: Iterable[Contract], description: str) -> None:
    """All addresses, and the document that tells of them."""
    shapes: list[Any] = []
    for contract in contracts:
        app.include_router(contract.router)
        shapes += [shape for shape in contract.shapes if shape not in shapes]

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=description, routes=app.routes)
            _, components = msgspec.json.schema_components(shapes, ref_template=REFERENCE)
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            schemas.pop("HTTPValidationError", None)  # FastAPI's own; ours are problems
            schemas.pop("ValidationError", None)
            schemas.update(components)
            made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            made["security"] = [{"token": []}, {}]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def json_answer(found: Any, status: int = 200) -> Response:
    return Response(ENCODER.encode(found), status, media_type="application/json")
