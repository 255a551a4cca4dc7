"""The script of a story, as it goes on: each statement waits for its moment, one after the other. In the plain telling
a moment that never comes fails the story; where a leader is made to die besides, moments may pass by, and what should
have happened then happens late."""

from __future__ import annotations

from tests.scenarios.actions import ACTIONS
from tests.scenarios.conditions import CONDITIONS, MOMENTS
from tests.scenarios.stage import Stage
from tests.scenarios.story import NobodyThere, Statement, Story

PATIENCE_MS = 2500
IDLE_MS = 1500


class Missed(AssertionError):
    """A moment that never came."""


class Script(Stage):
    """A stage with a story on it."""

    def __init__(self, story: Story, workers: int = 2, slots: int = 4, crashes: tuple[int, ...] = ()) -> None:
        self.left = list(story.script)
        self.since = self.idle_since = 0
        super().__init__(workers, slots, crashes)
        self.since = self.idle_since = self.now

    def step(self) -> None:
        super().step()
        if self.left:
            self.advance()
        if self.trace is not None:
            self.trace.follow(self.now)

    def run(self) -> None:
        self.advance()
        super().run()

    def is_over(self) -> bool:
        return not self.left and super().is_over()

    def advance(self) -> None:
        """Everything whose moment has come."""
        while self.left and (self.has_come(self.left[0]) or self.is_to_be_forced(self.left[0])):
            self.carry_out(self.left.pop(0))

    def has_come(self, statement: Statement) -> bool:
        if statement.when == "now":
            return True
        if statement.when == "after":
            return self.now - self.since >= int(statement.what.removesuffix(" ms"))
        return statement.when == "when" and all(CONDITIONS.say(self, one) for one in statement.what.split(" and "))

    def is_to_be_forced(self, statement: Statement) -> bool:
        if not self.is_idle():
            self.idle_since = self.now
        idle = self.now - self.idle_since
        if statement.when == "after":
            return False  # time always comes
        if self.crashes:
            return idle > 0 or self.now - self.since > PATIENCE_MS
        if idle > IDLE_MS or self.now - self.since > 4 * PATIENCE_MS:
            raise Missed(f"the moment never came: {statement.text}")
        return False

    def as_it_happens(self) -> None:
        if not self.left or self.left[0].when != "as":
            return
        moment, *more = self.left[0].what.split(" and ")
        if MOMENTS.say(self, moment) and all(CONDITIONS.say(self, one) for one in more):
            self.carry_out(self.left.pop(0))

    def carry_out(self, statement: Statement) -> None:
        self.since = self.now
        self.say(">>", statement.text)
        for action in statement.actions:
            try:
                ACTIONS.say(self, action)
            except NobodyThere:
                if not self.crashes:
                    raise
