"""The laws of the log, over random logs and random legal compactions of them."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from events.keys import parse
from events.records import Cursor, Job, Task
from events.table import Raw, Table, tombstone_headers, transactions
from tests.strategies import (
    CODEC,
    CURSOR,
    CUTS,
    SHARD,
    Log,
    an_event,
    applied,
    compacted,
    folded,
    logs,
    no_poison,
)

ANY = settings(max_examples=20_000, phases=[Phase.generate])  # a counterexample, which need not be short


def same(one: Table, other: Table) -> None:
    assert one.values == other.values
    assert one.epoch == other.epoch
    assert one.voided == other.voided == 0


@given(st.data(), logs())
def test_compaction_changes_nothing(data: st.DataObject, log: Log) -> None:
    """Law 1: fold(any legal compaction of the log) == fold(the log)."""
    left = data.draw(compacted(log))
    same(applied(left), applied(log.visible()))


@given(st.data(), logs(), CUTS)
def test_folding_in_bulk_is_folding_one_by_one(data: st.DataObject, log: Log, cuts: list[int]) -> None:
    left = data.draw(compacted(log))
    same(folded(left, cuts), applied(left))


@given(logs(), st.data())
def test_duplicates_change_nothing(log: Log, data: st.DataObject) -> None:
    """A record delivered again at once, and a tail read again from any earlier boundary."""
    visible = log.visible()
    twice = [record for record in visible for _ in range(data.draw(st.integers(1, 2)))]
    same(applied(twice), applied(visible))
    again = data.draw(st.sampled_from(log.boundaries))
    reread = applied([record for record in visible if record.offset >= again], applied(visible))
    assert reread.values == applied(visible).values
    assert reread.epoch == applied(visible).epoch


@given(logs(), st.data(), CUTS)
def test_a_snapshot_and_its_tail_are_the_whole(log: Log, data: st.DataObject, cuts: list[int]) -> None:
    """A snapshot taken at any boundary, continued on a log that was compacted since: as long as no tombstone behind the
    boundary has expired, nothing is missed."""
    boundary = data.draw(st.sampled_from(log.boundaries))
    snapshot = applied([record for record in log.visible() if record.offset < boundary])
    left = data.draw(compacted(log, tombstones_expire_before=boundary))
    tail = [record for record in left if record.offset >= boundary]
    same(folded(tail, cuts, snapshot), applied(log.visible()))


def test_a_snapshot_older_than_the_tombstones_is_wrong() -> None:
    """Why a mirror older than delete.retention.ms is refused: an expired tombstone behind it is missed."""

    def goes_wrong(case: tuple[Log, int, list[Raw]]) -> bool:
        log, boundary, left = case
        snapshot = applied([record for record in log.visible() if record.offset < boundary])
        tail = [record for record in left if record.offset >= boundary]
        return applied(tail, snapshot).values != applied(log.visible()).values

    @st.composite
    def cases(draw: st.DrawFn) -> tuple[Log, int, list[Raw]]:
        log = draw(logs())
        return log, draw(st.sampled_from(log.boundaries)), draw(compacted(log))

    assert find(cases(), goes_wrong, settings=ANY)


@st.composite
def intrusions(draw: st.DrawFn, log: Log) -> list[Raw]:
    """The log, with a transaction of a fenced leader put in after its successor's election."""
    elections = [w.raw for w in log.records if w.raw.key == b"leader/0"]
    newest = applied(log.visible()).epoch
    at = draw(st.sampled_from([boundary for boundary in log.boundaries if boundary > elections[-1].offset]))
    victims = draw(st.lists(st.sampled_from(["job/a", "job/b", "task/c/0/0"]), min_size=1, max_size=3))
    epoch = draw(st.integers(0, newest - 1))
    stray = [
        Raw(at, key.encode(), None, tombstone_headers(epoch, 99))
        if draw(st.booleans())
        else Raw(at, key.encode(), CODEC.encode(an_event(key, epoch, 99, 99, 1, Task(rows=666))))
        for key in victims
    ]
    stray.append(Raw(at, CURSOR, CODEC.encode(an_event("cursor/0", epoch, 0, 0, 1, Cursor(positions=())))))
    visible = log.visible()
    return [r for r in visible if r.offset < at] + stray + [r for r in visible if r.offset >= at]


@given(logs(), st.data(), CUTS)
def test_B6_a_lower_epoch_changes_nothing(log: Log, data: st.DataObject, cuts: list[int]) -> None:
    """Even if the broker's fencing failed: what a fenced leader wrote after its successor's election is void."""
    intruded = data.draw(intrusions(log))
    for table in (applied(intruded), folded(intruded, cuts)):
        assert table.values == applied(log.visible()).values
        assert table.epoch == applied(log.visible()).epoch
        assert table.voided == len(intruded) - len(log.visible())


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=20))
def test_B6_a_lower_incarnation_or_attempt_never_replaces_a_higher_one(steps: list[tuple[int, int, bool]]) -> None:
    key = b"task/a/0/0"
    table = Table("events", SHARD, CODEC)
    expected: tuple[int, int, int] | None = None
    for i, (incarnation, attempt, delete) in enumerate(steps):
        value = None if delete else CODEC.encode(an_event(key.decode(), 1, incarnation, attempt, i, Task()))
        headers = tombstone_headers(1, incarnation) if delete else None
        table.apply([Raw(i, key, value, headers)], poison=no_poison)
        if delete:
            expected = None if expected is None or incarnation >= expected[0] else expected
        elif expected is None or (incarnation, attempt) >= expected[:2]:
            expected = (incarnation, attempt, i)
        event = table.read(key)
        assert (event and (event.incarnation, event.attempt, event.sequence)) == expected


@given(logs())
def test_a_boundary_ends_every_transaction(log: Log) -> None:
    visible = log.visible()
    cut = transactions(visible, CURSOR)
    assert [record for transaction in cut for record in transaction] == visible
    assert [transaction[-1].key for transaction in cut] == [CURSOR] * len(log.boundaries)
    half = transactions(visible[:-1], CURSOR)  # what has not ended is not shown
    assert sum(map(len, half)) == len(visible) - len(cut[-1])


@given(logs())
def test_deadlines_are_those_of_the_decoded_events(log: Log) -> None:
    table = applied(log.visible())
    decoded = [(event.due_at, key) for key in table.values if (event := table.read(key)) and event.due_at]
    assert sorted(table.deadlines()) == sorted(decoded)
    assert all(parse(key) for _, key in decoded)


class Careless(Table):
    """A fold with the bug that the original engines had: whatever comes last counts."""

    def _admits(self, record: Raw, poison: object) -> bool:
        return True


def test_the_laws_can_see_a_careless_fold() -> None:
    def goes_wrong(case: tuple[Log, list[Raw]]) -> bool:
        log, intruded = case
        table = Careless("events", SHARD, CODEC)
        table.apply(intruded, poison=no_poison)
        return table.values != applied(log.visible()).values

    @st.composite
    def cases(draw: st.DrawFn) -> tuple[Log, list[Raw]]:
        log = draw(logs())
        return log, draw(intrusions(log))

    assert find(cases(), goes_wrong, settings=ANY)


def test_the_law_of_compaction_can_see_a_lost_tombstone() -> None:
    """The generator's own rule matters: without it, compaction would bring the dead back."""
    key = b"job/a"
    alive = Raw(0, key, CODEC.encode(an_event("job/a", 1, 1, 0, 1, Job(pipelines=1, submitted_at=1))))
    dead = Raw(1, key, None, tombstone_headers(1, 1))
    assert applied([alive, dead]).values != applied([alive]).values


@pytest.mark.parametrize(
    "poisoned", [b"", b"garbage", b"\xc3\x01short", b"\x00\x00\x00\x00\x01body", b"\xc3\x01 what is this?"]
)
def test_R4_poison_stands_where_it_was_written(poisoned: bytes) -> None:
    """It is reported, it is not taken for what stood there before, and what follows it is folded."""
    good = Raw(0, b"job/a", CODEC.encode(an_event("job/a", 1, 1, 0, 1, Job(pipelines=1, submitted_at=1))))
    cursor = Raw(2, CURSOR, CODEC.encode(an_event("cursor/0", 1, 0, 0, 2, Cursor(positions=()))))
    found = []
    table = Table("events", SHARD, CODEC)
    table.apply([good, Raw(1, b"job/a", poisoned), Raw(1, None, b"x"), cursor], poison=found.append)
    assert [(p.record.offset, p.record.value) for p in found] == [(1, poisoned), (1, b"x")]
    assert table.values[b"job/a"] == poisoned
    assert CURSOR in table.values
    later = deepcopy(table)
    later.apply([good._replace(offset=3)], poison=no_poison)
    assert later.values[b"job/a"] == good.value
