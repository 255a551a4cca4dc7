"""The two questions that are asked most, a page of all jobs as they are now and a job, answered without the framework:
of what such an answer costs it would be the larger part. Whatever else a request says is handed on, and so is whatever
is not there. The answers are the same, to which tests hold it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl

from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.web.contract import PREFIX, json_answer
from coordinator.web.parameters import LARGEST, MOST_LISTED, PAGE, SLASH
from coordinator.web.problems import Refused
from coordinator.web.redact import redacted
from coordinator.web.window import Window

LIST = f"{PREFIX}/jobs"
ONE = f"{LIST}/"
MOST = {"start": LARGEST, "limit": MOST_LISTED}


class Matched(NamedTuple):
    """What is counted by its address."""

    path: str


class Quick:
    def __init__(self, app: ASGIApp, window: Window) -> None:
        self._app, self._window = app, window

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] == "http" and scope["method"] == "GET" and self._window.is_open
        try:
            answer = self._answer(scope) if asked else None
        except Refused:  # the log has become unreadable this moment
            answer = None
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        path: str = scope["path"]
        if path == LIST:
            scope["route"] = Matched(LIST)
            return self._page(scope["query_string"])
        name = path.removeprefix(ONE)
        if scope["query_string"] or name == path or not name or "/" in name or SLASH in name:
            return None
        scope["route"] = Matched(f"{LIST}/{{job}}")
        return self._job(name)

    def _page(self, query: bytes) -> Response | None:
        asked = {"start": 0, "limit": PAGE}
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if name not in MOST or not (value.isascii() and value.isdigit()) or int(value) > MOST[name]:
                return None
            asked[name] = int(value)
        with self._window.model.now() as answers:
            return json_answer(answers.jobs(start=asked["start"], limit=asked["limit"]))

    def _job(self, name: str) -> Response | None:
        with self._window.model.now() as answers:
            found = answers.job(name)
        return json_answer(replace(found, specification=redacted(found.specification))) if found else None
