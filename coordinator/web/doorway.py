"""What every request passes: the guard at the door, and the headers that tell a browser what our pages may do.

An ASGI layer without a task or a stream of its own, so that it costs next to nothing and server-sent events pass
through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.web import problems
from coordinator.web.guard import Guard
from coordinator.web.parameters import SLASH

# Pages load from here and nowhere else, run nothing that is not a file of ours, and stand in no frame of others.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# What needs no token: it holds no data.
OPEN_PATHS = frozenset({"/", "/healthz", "/favicon.ico"})
OPEN_BELOW = "/static/"
MOST_BODY_BYTES = 2 * 1024 * 1024


class Doorway:
    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _keep_slashes(scope)
        path, headers = scope["path"], _decoded(scope["headers"])
        no_store = path.startswith("/api/") or path == "/metrics"

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
                if no_store:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        opens = path in OPEN_PATHS or path.startswith(OPEN_BELOW)
        refused = self._guard.refusal(scope["method"], headers, opens=opens)
        if refused is not None:
            answer = problems.answer(refused.status, refused.title, refused.detail, path)
            await answer(scope, receive, sent)
            return
        if int(headers.get("content-length", "0") or 0) > MOST_BODY_BYTES:
            answer = problems.answer(413, "Too large", f"a request has at most {MOST_BODY_BYTES:,} bytes", path)
            await answer(scope, receive, sent)
            return
        scope.setdefault("state", {})["role"] = self._guard.role(headers)
        await self._app(scope, receive, sent)


def _keep_slashes(scope: Scope) -> None:
    """A slash that was encoded belongs to a name; decoded, the router would take it for the end of the name."""
    raw = scope.get("raw_path", b"")
    if b"%2f" in raw.lower():
        kept = re.sub(rb"%2f", quote(SLASH).encode(), raw.partition(b"?")[0], flags=re.IGNORECASE)
        scope["path"] = unquote(kept.decode("ascii"))


def _decoded(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """A header that comes twice counts as its last: the guard and the app must not see different ones, and the app is
    given the same list."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
