"""What a read looks at: the state as it is now, after a write if it says so, or as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from coordinator.answers import Answers
from coordinator.past import NoSuchMoment, Past
from coordinator.web.parameters import Moment, moment_of, place_of
from coordinator.web.problems import Refused
from coordinator.web.window import Window

T = TypeVar("T")


def window_of(request: Request) -> Window:
    window: Window = request.app.state.window
    return window


async def look(request: Request, at: str | None, after: str | None, wait_ms: int, ask: Callable[[Answers], T]) -> T:
    """Ask of a moment. Raises Refused: for a moment that the log no longer has, for a write that is not decided on in
    time."""
    window = window_of(request)
    moment = await _moment(window, at, after, wait_ms)
    if moment is None:
        with window.model.now() as answers:
            return ask(answers)
    return await window.ask_past(lambda past: ask(as_of(past, moment)))


async def look_back(
    request: Request, at: str | None, after: str | None, wait_ms: int, ask: Callable[[Past, Answers | None], T]
) -> T:
    """Ask of what the log tells up to a moment; its state then, too, if it is not now."""
    window = window_of(request)
    moment = await _moment(window, at, after, wait_ms)
    return await window.ask_past(lambda past: ask(past, as_of(past, moment) if moment is not None else None))


async def _moment(window: Window, at: str | None, after: str | None, wait_ms: int) -> Moment | None:
    moment = moment_of(at)
    if moment is not None and after is not None:
        raise Refused(422, "Not understood", "`at` asks for the past and `after` for what comes; choose one")
    if after is not None:
        await window.wait_for(*place_of(after), wait_ms)
    return moment


def as_of(past: Past, moment: Moment) -> Answers:
    try:
        if moment.shard is not None and moment.offset is not None:
            return past.at_offset(moment.shard, moment.offset)
        return past.at_time(moment.time or 0)
    except NoSuchMoment as error:
        raise Refused(409, "No such moment", str(error)) from error
