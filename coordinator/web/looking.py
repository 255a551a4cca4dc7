"""What a read looks at: the state as it is now, after a write if it says so, or as it was."""

from __future__ import annotations

from fastapi import Request

from coordinator.read_model import ReadModel
from coordinator.web.parameters import moment_of, place_of
from coordinator.web.problems import Refused
from coordinator.web.window import Window


def window_of(request: Request) -> Window:
    window: Window = request.app.state.window
    return window


async def look(request: Request, at: str | None, after: str | None, wait_ms: int) -> ReadModel:
    """Raises Refused: for a moment that the log no longer has, for a write that is not decided on in time."""
    window, moment = window_of(request), moment_of(at)
    if moment is not None and after is not None:
        raise Refused(422, "Not understood", "`at` asks for the past and `after` for what comes; choose one")
    if after is not None:
        await window.wait_for(*place_of(after), wait_ms)
    return window.model
