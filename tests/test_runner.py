"""When a coordinator that stands by takes its turn: what it hears of others, and whether it hears at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import runner as runner_module
from coordinator.core import activation, resignation
from coordinator.membership import Member
from coordinator.runner import DEAF_MS, ShardRunner, Timing
from coordinator.state import State
from events.records import Beat, Leader, ShardLed

DETECTION_MS = 500


class Hears:
    """What a runner asks Peers."""

    def __init__(self) -> None:
        self.begun_ms = 0
        self.heard_myself_ms = 0
        self.led_ms: dict[str, int] = {}
        self.gone: dict[str, int] = {}
        self.newer: Member | None = None

    def members(self) -> dict[str, Member]:
        return {name: Member(Beat(coordinator=name, instance=f"i-{name}", time=0), 0, 0) for name in ("c0", "c1")}

    def last_heard_ms(self, coordinator: str, shard: int) -> int:
        return self.led_ms.get(coordinator, 0)

    def gone_ms(self, coordinator: str, instance: str) -> int:
        return self.gone.get(instance, 0)

    def newer_leader(self, shard: int, epoch: int) -> Member | None:
        return self.newer


class Standby:
    """c0, standing by, with a clock of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 60_000
        monkeypatch.setattr(runner_module, "monotonic_ms", lambda: self.now)
        self.peers, self.state = Hears(), State(0)
        around: Any = SimpleNamespace(
            cluster=SimpleNamespace(topic=str, producer=lambda **_: None), codec=None, name="c0", instance="i-c0",
            peers=self.peers, timing=Timing(detection_ms=DETECTION_MS),
        )  # fmt: skip
        self.runner = ShardRunner(around, 0)
        self.runner.replica = SimpleNamespace(state=self.state, heard_s=0.0)  # type: ignore[assignment]

    def elected(self, coordinator: str, epoch: int) -> None:
        """As the log tells it."""
        leader = Leader(coordinator=coordinator, instance=f"i-{coordinator}")
        activation(self.state, epoch, self.now, leader).kept()

    def reason(self) -> str:
        turn = self.runner._turn()
        return turn.reason if turn else ""


@pytest.fixture
def standby(monkeypatch: pytest.MonkeyPatch) -> Standby:
    return Standby(monkeypatch)


def test_a_leader_that_falls_silent_is_followed_after_the_detection_time(standby: Standby) -> None:
    standby.elected("c1", 1)
    standby.peers.led_ms["c1"] = standby.now
    for _ in range(DETECTION_MS // 100):
        standby.now += 100
        standby.peers.heard_myself_ms = standby.now
        assert not standby.reason()
    standby.now += 1
    assert standby.reason() == "c1 has been silent for 501 ms"


def test_who_does_not_hear_itself_judges_nobody_for_long(standby: Standby) -> None:
    """Cut off, or healed and not yet caught up: the silence is its own."""
    standby.elected("c1", 1)
    standby.peers.led_ms["c1"] = standby.peers.heard_myself_ms = standby.now
    standby.now += DEAF_MS
    assert not standby.reason()
    standby.now += 1  # where nobody's beats get through, somebody must lead all the same
    assert standby.reason() == f"c1 has been silent for {DEAF_MS + 1} ms"


def test_who_leads_by_its_beats_is_believed_before_the_log_tells(standby: Standby) -> None:
    """A leader that was cut off comes back: by its log it leads itself, but another one's beats say otherwise."""
    standby.elected("c0", 1)
    standby.peers.newer = Member(
        Beat(coordinator="c1", instance="i-c1", time=0, shards=(ShardLed(shard=0, epoch=2),)), 0, standby.now
    )
    standby.peers.led_ms["c1"] = standby.now
    standby.now += DETECTION_MS
    standby.peers.heard_myself_ms = standby.now
    assert not standby.reason()
    standby.peers.gone["i-c1"] = standby.now
    assert standby.reason() == "the connection to c1 has ended"


def test_a_resigned_leader_is_not_followed_twice(standby: Standby) -> None:
    """Another one leads already and has said so, while the log here still ends with the resignation."""
    standby.elected("c1", 1)
    resignation(standby.state, standby.now, Leader(coordinator="c1", instance="i-c1", successor="c0")).kept()
    assert standby.reason() == "c1 resigned"
    standby.peers.newer = Member(
        Beat(coordinator="c2", instance="i-c2", time=0, shards=(ShardLed(shard=0, epoch=2),)), 0, standby.now
    )
    standby.peers.led_ms["c2"] = standby.peers.heard_myself_ms = standby.now
    assert not standby.reason()


def test_who_was_fenced_yields_until_the_other_has_led_and_no_longer(standby: Standby) -> None:
    """Found by T2 on a busy machine: whoever fenced it had led and died meanwhile, and nobody took over."""
    runner = standby.runner
    standby.elected("c1", 1)
    standby.peers.gone["i-c1"] = standby.now
    assert standby.reason()
    runner._yields_in, runner._yield_until_ms = 1, standby.now + 60_000  # it tried, and was fenced by somebody
    assert not standby.reason()
    standby.elected("c2", 2)
    standby.peers.led_ms["c2"] = standby.now
    assert not standby.reason(), "it lives"
    standby.peers.gone["i-c2"] = standby.now
    assert standby.reason() == "the connection to c2 has ended"
    standby.elected("c1", 1)
    standby.now += 60_000
    assert standby.reason(), "whoever fenced it has had the time to lead"


def test_ready_is_who_would_take_over_at_once(standby: Standby) -> None:
    """Who has just begun does not know the others yet, and holds back: a rolling upgrade must not end the last one
    that leads on its word."""
    standby.elected("c1", 1)
    standby.runner.standing_by = True
    standby.peers.begun_ms = standby.peers.led_ms["c1"] = standby.peers.gone["i-c1"] = standby.now
    known_ms = 3 * Timing().beat_ms
    standby.now += known_ms - 1
    assert (standby.runner.would_take_over, standby.reason()) == (False, "")
    standby.now += 1
    assert (standby.runner.would_take_over, standby.reason()) == (True, "the connection to c1 has ended")
    standby.runner.standing_by = False
    assert not standby.runner.would_take_over
