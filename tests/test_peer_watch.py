"""Coordinators notice each other's death: by the end of a connection that was held, and whatever is still under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coordinator import peer_watch
from coordinator import peers as peers_module
from coordinator.peer_watch import PeerWatch
from coordinator.peers import Peers
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.records import Beat, ShardLed
from events.topics import ensure_topics
from tests.logs import own_cluster

Step = Callable[[], Any]


class Known:
    """What the watch needs of Peers."""

    def __init__(self) -> None:
        self.there = {"i1": "127.0.0.1:1"}
        self.lost: list[str] = []

    def addresses(self) -> dict[str, str]:
        return self.there

    def lose(self, instance: str) -> None:
        self.lost.append(instance)
        self.there = {}


def ended() -> Any:
    """A connection that was made and has ended."""
    reader = asyncio.StreamReader()
    reader.feed_eof()

    class Writer:
        def write(self, _data: bytes) -> None: ...
        def close(self) -> None: ...

    return reader, Writer()


def refused() -> Any:
    raise ConnectionRefusedError


def reset() -> Any:
    raise ConnectionResetError


def unreachable() -> Any:
    raise OSError(113, "No route to host")


@pytest.mark.parametrize(
    ("steps", "dies"),
    [
        ([ended, refused], True),
        ([ended, reset, reset, refused], True),  # it was dying: its port was still open
        ([ended, unreachable, refused], True),  # the network was cut for a moment
        ([ended, ended, refused], True),
        ([refused, refused], False),  # never held: it may listen where nobody here can get
        ([reset, refused], False),
        ([unreachable, refused], False),
    ],
)
def test_only_a_connection_that_was_held_and_can_not_be_made_again_tells(
    steps: list[Step], dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(steps)

    async def connect(host: str, port: int) -> Any:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)()

    monkeypatch.setattr(asyncio, "open_connection", connect)
    for name in ("CONNECT_S", "AGAIN_S", "LOOK_EVERY_S"):
        monkeypatch.setattr(peer_watch, name, 0.001)
    known = Known()

    async def watched() -> None:
        watch = PeerWatch()
        watch.watch(known)  # type: ignore[arg-type]
        looking = asyncio.create_task(watch.look())
        async with asyncio.timeout(20):
            while left or (dies and not known.lost):
                await asyncio.sleep(0.001)
        looking.cancel()

    asyncio.run(watched())
    assert known.lost == (["i1"] if dies else [])


class Beaten:
    """A beat as it comes from the topic."""

    def __init__(self, beat: Beat) -> None:
        self._value = Codec().encode(beat)

    def value(self) -> bytes:
        return self._value

    def offset(self) -> int:
        return 0


@pytest.mark.broker
def test_a_beat_that_was_under_way_when_its_sender_died_does_not_bring_it_back(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = own_cluster(broker.bootstrap_servers)
    ensure_topics(cluster)
    now = [1000]
    monkeypatch.setattr(peers_module, "monotonic_ms", lambda: now[0])
    me = Beat(coordinator="c1", instance="i1", time=0)
    other = Beat(coordinator="c0", instance="i0", address="127.0.0.1:1", time=0, shards=(ShardLed(shard=0, epoch=1),))
    peers = Peers(cluster, Codec(), lambda: me, beat_ms=100)
    hear = lambda: peers._take(Beaten(other))  # type: ignore[arg-type]  # noqa: E731
    hear()
    assert (peers.gone_ms("c0", "i0"), set(peers.members())) == (0, {"c0", "c1"})
    peers.lose("i0")
    now[0] += 300
    hear()
    assert (peers.gone_ms("c0", "i0"), set(peers.members())) == (1000, {"c1"})
    now[0] += 300
    hear()  # it beats on: it lives
    assert (peers.gone_ms("c0", "i0"), set(peers.members())) == (0, {"c0", "c1"})
