"""Verification of the log: nothing is found in what the coordinator writes, and whatever is done to a log is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.draft import Gone
from coordinator.rerun_log import Rerunner
from coordinator.verify import Finding, Verifier, verify
from events.records import Command, Cursor, Event, Report
from events.table import transactions
from tests.explained import CODEC, raws
from tests.published import events_of, raws_of
from tests.scenarios.runner import find, tell
from tests.scenarios.story import Story, all_stories
from tests.simulation.broker import COMMITTED, Broker
from tests.simulation.world import World

Log = list[Event | Gone]
# Stories in which a leader lacks a step: that is found.
FORGETFUL = {"R2", "O1", "B11"}


def inputs_of(broker: Broker) -> Callable[[str, int], Command | Report | None]:
    def at(topic: str, offset: int) -> Any:
        stored = broker.partition(topic).stored
        return stored[offset].value if offset < len(stored) and stored[offset].status == COMMITTED else None

    return at


def verified(broker: Broker) -> tuple[Verifier, Rerunner]:
    verifier, rerunner = Verifier(0, 1, CODEC), Rerunner(0, 1, inputs_of(broker))
    for records in transactions(raws_of(broker, CODEC), b"cursor/0"):
        counted = verifier.add(records)
        if not verifier.gaps:
            rerunner.add(counted)
    return verifier, rerunner


@pytest.mark.parametrize("story", all_stories(), ids=lambda story: str(story.name))
def test_the_log_of_every_story_is_sound(story: Story) -> None:
    verifier, rerunner = verified(tell(story).broker)
    wrong = [each for each in verifier.findings if each.kind != "void"]
    if story.id not in FORGETFUL:
        assert wrong == []
        assert rerunner.findings == []
    assert rerunner.decided or verifier.gaps


def test_B11_what_was_decided_otherwise_is_shown_field_by_field() -> None:
    verifier, rerunner = verified(tell(find("B11")[0]).broker)
    (found,) = rerunner.findings
    assert (found.key, found.field, found.recorded, found.computed) == (
        "cleanup/a/1",
        "transition",
        "None",
        "'promised'",
    )
    assert "reports/0@3" in found.what
    assert [each.what for each in verifier.findings] == [
        "before it, 31 was decided and is not on the log",
        "it is FINISHED, and no cleanup is promised",
    ]


@pytest.mark.parametrize("seed", range(1, 21))
def test_logs_of_the_simulation_are_sound_but_for_the_logic_that_forgets_to_promise_cleanup(seed: int) -> None:
    world = World(seed)
    world.run()
    verifier, rerunner = verified(world.broker)
    for each in [*verifier.findings, *rerunner.findings]:
        forgotten = each.key.startswith("cleanup/") or "no cleanup is promised" in each.what
        missing = "is not on the log" in each.what and each.key.startswith("summary/")  # its number was the promise's
        assert each.kind == "void" or forgotten or missing, each


def whole(name: str = "R1") -> Log:
    return events_of(tell(find(name)[0]).broker)


def found_in(log: Log) -> list[Finding]:
    return verify(transactions(raws(log), b"cursor/0"), CODEC, 0).findings


def place(log: Log, entity: str, transition: str) -> int:
    return next(
        i for i, e in enumerate(log) if isinstance(e, Event) and (e.entity, e.transition) == (entity, transition)
    )


def changed(log: Log, at: int, **fields: Any) -> Log:
    event = log[at]
    assert isinstance(event, Event)
    return [*log[:at], replace(event, **fields), *log[at + 1 :]]


def test_an_event_that_is_missing_is_found() -> None:
    log = whole()
    assert found_in(log) == []
    at = place(log, "task/a/0/2", "running")
    said = {(each.key, each.what) for each in found_in([*log[:at], *log[at + 1 :]])}
    assert ("task/a/0/2", "it says that it left RUNNING, but it was DEPLOYING") in said
    assert any("was decided and is not on the log" in what for _, what in said)


def test_a_transition_that_the_tables_do_not_have_is_found() -> None:
    log = whole()
    at = place(log, "job/a", "running")
    assert [each.what for each in found_in(changed(log, at, transition="finished"))] == [
        "'finished' from SCHEDULED does not lead to RUNNING"
    ]
    assert [each.what for each in found_in(changed(log, at, transition="dancing"))] == [
        "'dancing' is not legal from SCHEDULED"
    ]


def test_what_must_only_grow_is_watched() -> None:
    log = whole()
    at = place(log, "checkpoint/a/0", "committed")
    second = at + 1 + place(log[at + 1 :], "checkpoint/a/0", "completed")
    event = log[second]
    assert isinstance(event, Event)
    old = replace(event.state, id=1)  # type: ignore[type-var]
    assert "checkpoint 1 comes after 1: ids only grow" in [e.what for e in found_in(changed(log, second, state=old))]
    assert any("numbers only grow" in e.what for e in found_in(changed(log, at, sequence=1)))
    cursor = max(i for i, e in enumerate(log) if isinstance(e, Event) and isinstance(e.state, Cursor))
    last = log[cursor]
    assert isinstance(last, Event)
    assert isinstance(last.state, Cursor)
    back = replace(last.state, positions=tuple(replace(p, offset=0) for p in last.state.positions))
    assert any("consumed twice" in e.what for e in found_in(changed(log, cursor, state=back)))


def test_B6_what_a_fenced_leader_wrote_is_named_and_breaks_nothing() -> None:
    found = found_in(whole("B6"))
    assert found
    assert {each.kind for each in found} == {"void"}


def test_a_record_that_nobody_can_read_is_found() -> None:
    records = raws(whole())
    records[5] = records[5]._replace(value=b"\xc3\x01garbage!")
    found = verify(transactions(records, b"cursor/0"), CODEC, 0).findings
    assert any("can't be read" in each.what for each in found)


def test_a_deadline_that_nobody_keeps_is_overdue() -> None:
    log = whole("R6")
    end = max(i for i, e in enumerate(log) if e.entity == "cursor/0" and i < len(log) // 2)
    part = log[: end + 1]
    now = max(e.time for e in part if isinstance(e, Event)) + 10 * 60_000
    found = verify(transactions(raws(part), b"cursor/0"), CODEC, now).findings
    assert {each.kind for each in found} == {"overdue"}
    assert "is there a coordinator?" in found[0].what
