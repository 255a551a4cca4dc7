"""Errors as answers: `application/problem+json` (RFC 9457). Each kind is told in docs/rest.md, under its title."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from events.errors import DetentError

LOG = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, to what, and what to do."""

    type: str  # the kind of problem: an anchor of docs/rest.md
    title: str
    status: int
    detail: str
    instance: str = ""  # the path that was asked


class Refused(Exception):
    """Raised by whatever answers a request; it becomes a Problem."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail


def unknown(what: str, name: str) -> Refused:
    return Refused(404, f"No such {what}", f"there is no {what} {name[:200]!r}")


def answer(status: int, title: str, detail: str, instance: str = "") -> Response:
    kind = f"docs/rest.md#{title.lower().replace(' ', '-')}"
    problem = Problem(type=kind, title=title, status=status, detail=detail, instance=instance)
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return Response(msgspec.json.encode(problem), status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Every error of the app is answered as a problem."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return answer(error.status, error.title, error.detail, request.url.path)

    @app.exception_handler(DetentError)
    async def failed(request: Request, error: DetentError) -> Response:
        LOG.warning("%s %s: %s", request.method, request.url.path, error)
        return answer(503, "Not available", str(error), request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(422, "Not understood", "; ".join(map(_said, error.errors()[:5])), request.url.path)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        phrase = HTTPStatus(error.status_code).phrase
        made = answer(error.status_code, phrase, f"{request.method} {request.url.path}: {phrase}", request.url.path)
        made.headers.update(error.headers or {})
        return made

    @app.exception_handler(Exception)
    async def broken(request: Request, _error: Exception) -> Response:
        detail = "a fault of this server; its log has the trace"
        return answer(500, "Internal error", detail, request.url.path)


def _said(error: dict[str, Any]) -> str:
    *_, name = error["loc"] or ("the request",)
    return f"{name}: {error['msg']}"
