"""The web application: the API, the page's files, health and metrics, behind the doorway."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.web import problems
from coordinator.web.cluster import CLUSTER
from coordinator.web.commands import COMMANDS
from coordinator.web.contract import install
from coordinator.web.doorway import Doorway
from coordinator.web.guard import Guard
from coordinator.web.jobs import JOBS
from coordinator.web.live import LIVE, Changes
from coordinator.web.metrics import WebMetrics
from coordinator.web.quick import Quick
from coordinator.web.window import Window

STATIC = Path(__file__).parent / "static"
DESCRIPTION = (
    "Jobs, their pipelines, tasks and checkpoints, who leads them, and everything that happened to them, from the log: "
    "now, or as it was at any moment (`at`). Commands are published to the log; a read waits for one with `after`. "
    "Times are milliseconds since 1970 UTC. Errors are problems (RFC 9457)."
)


def build(window: Window, guard: Guard, version: str = "", ending: threading.Event | None = None) -> ASGIApp:
    """`ending` is set when the process is to end: live connections are then let go, which would last for ever. Raises
    OpenToTheWorld or WeakToken."""
    guard.check()
    changes, metrics = Changes(ending or threading.Event()), WebMetrics(window)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        window.when_open(lambda model: model.listen(changes.hear))
        spreading = asyncio.create_task(changes.spread())
        yield
        changes.end()
        spreading.cancel()
        with suppress(asyncio.CancelledError):
            await spreading

    app = FastAPI(
        title="Detent",
        version=version or "0",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
    )
    app.state.window, app.state.changes, app.state.metrics = window, changes, metrics
    problems.install(app)
    install(app, (JOBS, COMMANDS, CLUSTER, LIVE), DESCRIPTION)
    _add_pages(app, window, metrics, changes)
    return Doorway(Counted(Quick(app, window), metrics), guard)


def _add_pages(app: FastAPI, window: Window, metrics: WebMetrics, changes: Changes) -> None:
    async def page(_request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        return JSONResponse({"ready": window.is_open}, 200 if window.is_open else 503)

    async def metrics_page(_request: Request) -> Response:
        metrics.live.set(len(changes))
        found = await asyncio.to_thread(metrics.page)
        return Response(found, media_type="text/plain; version=0.0.4; charset=utf-8")

    routes: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/": page, "/healthz": healthz, "/readyz": readyz, "/metrics": metrics_page,
    }  # fmt: skip
    for path, answers in routes.items():
        app.add_route(path, answers, methods=["GET"], include_in_schema=False)
    app.mount("/static", Revalidated(directory=STATIC))


class Revalidated(StaticFiles):
    """Files that a browser keeps, and asks about each time: an upgrade is seen at once, and costs no second load."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        made = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        made.headers["cache-control"] = "no-cache"
        return made


class Counted:
    """Counts requests by the address they matched."""

    def __init__(self, app: ASGIApp, metrics: WebMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                route = getattr(scope.get("route"), "path", "other")
                self._metrics.answered(route, status, time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, sent)
