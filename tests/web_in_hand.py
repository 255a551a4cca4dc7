"""The web application over a story of tests/scenarios, without a broker: for tests of its addresses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.types import ASGIApp

from coordinator.answers import Answers
from coordinator.ignored import Reported
from coordinator.job_index import JobIndex
from coordinator.past import LogReader, Past
from coordinator.timeline import Timeline
from coordinator.web.app import build
from coordinator.web.guard import Guard
from coordinator.web.problems import Refused
from coordinator.web.window import NOT_YET, Window
from events.cluster import Cluster
from events.codec import Codec
from events.errors import Place
from events.records import Command
from events.table import Raw

T = TypeVar("T")
CODEC = Codec()


class LogInHand(LogReader):
    def __init__(self, whole: list[list[Raw]]) -> None:
        self.shard, self._whole = 0, whole

    def close(self) -> None:
        pass

    def end(self) -> int:
        return self._whole[-1][-1].offset + 1

    def read(self, start: int, end: int) -> Iterator[list[Raw]]:
        return (records for records in self._whole if start <= records[0].offset and records[-1].offset < end)

    def segment(self, start: int, end: int) -> Sequence[Sequence[Raw]]:
        return list(self.read(start, end))


class PastInHand(Past):
    def __init__(self, whole: list[list[Raw]]) -> None:
        self.cluster, self.codec = Cluster("", shards=1), CODEC
        log = LogInHand(whole)
        self._logs = [log]
        self._lines = [Timeline(0, 1, CODEC, log.segment)]
        self._index = JobIndex()
        self._told = OrderedDict()
        self._refreshed_at = 0

    def reports(self, job: str) -> list[Reported]:
        return []


class ModelInHand:
    """As it was at the end of the story."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    @contextmanager
    def now(self) -> Iterator[Answers]:
        yield self._answers


class WindowInHand(Window):
    def __init__(self, whole: list[list[Raw]], moment: Callable[[Past], Answers]) -> None:
        self._past_in_hand = PastInHand(whole)
        self._model_in_hand: Any = ModelInHand(moment(PastInHand(whole)))
        self._cluster = Cluster("", shards=1)
        self.commands: list[Command] = []

    @property
    def model(self) -> Any:
        return self._model_in_hand

    @property
    def is_open(self) -> bool:
        return True

    def when_open(self, use: Callable[[Any], object]) -> None:
        pass

    async def ask_past(self, ask: Callable[[Past], T]) -> T:
        return ask(self._past_in_hand)

    async def publish(self, command: Command) -> Place:
        self.commands.append(command)
        return Place("commands", 0, len(self.commands) - 1)

    async def wait_for(self, shard: int, offset: int, wait_ms: int) -> None:
        if shard:
            raise Refused(422, "Not understood", f"after names shard {shard}; there is 1")
        raise Refused(
            503, NOT_YET, f"the command at {shard}:{offset} was not decided on within {wait_ms} ms; ask again"
        )


def an_app(whole: list[list[Raw]], guard: Guard | None = None) -> tuple[ASGIApp, WindowInHand]:
    end = whole[-1][-1].offset
    window = WindowInHand(whole, lambda past: past.at_offset(0, end))
    return build(window, guard or Guard(), "test"), window
