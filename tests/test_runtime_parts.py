"""The small parts of the coordinator's process: its clock, who should lead, what it says, directories of its own."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.membership import Member, candidates, preferred, rank
from coordinator.telling import tell
from events.clock import SteadyClock
from events.places import Place
from events.records import Beat, ShardLed
from tests.shard import Shard


class Clocks:
    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 50.0

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


def test_a_clock_that_somebody_sets_does_not_jump() -> None:
    clocks = Clocks()
    clock = SteadyClock(lambda: clocks.wall, lambda: clocks.steady)
    before = clock.now_ms()
    clocks.wall += 3600
    assert clock.now_ms() == before
    assert clock.off_ms() == 3_600_000
    clocks.pass_s(10)
    assert 10_000 <= clock.now_ms() - before <= 10_200  # it follows, slowly
    clocks.wall -= 7200
    earlier = clock.now_ms()
    clocks.pass_s(10)
    assert clock.now_ms() > earlier


def a_member(name: str, leads: tuple[int, ...] = (), stands_by: tuple[int, ...] = (), logic: int = 1) -> Member:
    led = tuple(ShardLed(shard=shard, epoch=1) for shard in leads)
    beat = Beat(coordinator=name, instance=name, time=0, shards=led, standing_by=stands_by, logic=logic)
    return Member(beat, 0, 0)


def test_who_follows_and_has_the_logic_is_a_candidate() -> None:
    members = {
        "a": a_member("a", leads=(0,)),
        "b": a_member("b", stands_by=(0, 1)),
        "c": a_member("c", stands_by=(1,)),
        "d": a_member("d", stands_by=(0, 1), logic=0),
    }
    assert candidates(members, 0, 1) == ["a", "b"]
    assert candidates(members, 1, 0) == ["b", "c", "d"]
    assert preferred([], 3) == ""


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=6), st.integers(0, 50))
def test_everyone_agrees_whose_turn_it_is_and_shards_spread_evenly(names: set[str], shard: int) -> None:
    ranks = {name: rank(name, names, shard) for name in names}
    assert sorted(ranks.values()) == list(range(len(names)))
    assert ranks[preferred(sorted(names), shard)] == 0
    led = [preferred(sorted(names), each) for each in range(len(names) * 3)]
    assert all(led.count(name) == 3 for name in names)


def test_a_directory_of_its_own_and_the_same_again(tmp_path: Path) -> None:
    one, two = Place(tmp_path), Place(tmp_path)
    assert one.path != two.path
    one.release()
    three = Place(tmp_path)
    assert three.path == one.path
    two.release()
    three.release()


def test_D8_every_line_of_a_deploy_says_who_and_where(caplog: pytest.LogCaptureFixture) -> None:
    shard = Shard()
    shard.worker("w1")
    shard.submit("a", 1)
    with caplog.at_level(logging.DEBUG, "coordinator.telling"):
        tell(0, shard.log, ())
    lines = [record for record in caplog.records if record.getMessage().startswith("task/")]
    assert {record.args[1] for record in lines if isinstance(record.args, tuple)} == {"created", "placed"}
    placed = next(record for record in lines if "placed" in record.getMessage())
    said = {name: getattr(placed, name) for name in ("shard", "epoch", "job", "pipeline", "task", "attempt", "worker")}
    assert said == {"shard": 0, "epoch": 1, "job": "a", "pipeline": 0, "task": 0, "attempt": 1, "worker": "w1"}
