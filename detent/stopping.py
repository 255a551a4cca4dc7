"""Ctrl-C and SIGTERM as a question that a loop asks, rather than an exception that comes anywhere."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from events.asked import Asked


class Stopping:
    """Use as a context on the main thread. The second Ctrl-C is an exception again, for who can't wait."""

    def __init__(self) -> None:
        self._asked = Asked()
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it was asked for meanwhile."""
        return self._asked.wait(seconds)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked.set()

    def __enter__(self) -> Stopping:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
