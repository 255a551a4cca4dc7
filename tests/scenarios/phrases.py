"""Phrases of the stories' language: what a line means is the function whose pattern it matches as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tests.scenarios.story import StoryError

if TYPE_CHECKING:
    from tests.scenarios.stage import Stage

T = TypeVar("T")
Meaning = tuple[Callable[..., object], tuple[str | None, ...]]


class Phrases:
    """A vocabulary: patterns with what they mean. Groups of the pattern are the function's arguments."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.known: list[tuple[re.Pattern[str], Callable[..., object]]] = []
        self.read: dict[str, Meaning] = {}  # what was looked up before

    def means(self, pattern: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
        def register(function: Callable[..., T]) -> Callable[..., T]:
            self.known.append((re.compile(pattern), function))
            return function

        return register

    def say(self, stage: Stage, text: str) -> object:
        meant = self.read.get(text) or self.read.setdefault(text, self._look_up(text))
        return meant[0](stage, *meant[1])

    def _look_up(self, text: str) -> Meaning:
        for pattern, function in self.known:
            if match := pattern.fullmatch(text):
                return function, match.groups()
        known = "\n  ".join(pattern.pattern for pattern, _ in self.known)
        raise StoryError(f"no {self.kind} is written {text!r}; those known are:\n  {known}")
