"""The oracle can see: a legal log has no findings, and every fault that is planted in it is found, where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from events import records as r
from tests.oracle import Attempt, Finding, Log, Onlooker, Record, check, differences
from tests.oracle.facts import decoded
from tests.scribe import CODEC, a_run, publish

STARTS = [
    ("w", Attempt("done", 1, 0, 0, 1)),
    ("w", Attempt("done", 1, 0, 1, 1)),
    ("w", Attempt("more", 2, 0, 0, 1)),
    ("w", Attempt("more", 2, 0, 0, 2)),
]


class Doctor:
    """Changes a log as no coordinator may."""

    def __init__(self, log: Log, root: Path) -> None:
        self.log, self.root, self.starts = log, root, list(STARTS)

    def at(self, key: str, to: str = "", count: int = 0, topic: str = "events") -> int:
        """Which record of the topic is the count-th of this key that leads to this state; "-" is a tombstone."""
        found = []
        for index, record in enumerate(self.log.partition(topic, 0)):
            event = decoded(CODEC, record, r.Event) if topic == "events" and record.value is not None else None
            if record.key == key.encode() and (
                to == "-" if record.value is None else to in ("", getattr(event, "to", ""))
            ):
                found.append(index)
        return found[count]

    def change(self, index: int, topic: str = "events", **fields: Any) -> None:
        records = self.log.partition(topic, 0)
        kind: type[Any] = {"events": r.Event, "orders": r.Order}[topic]
        now = msgspec.structs.replace(decoded(CODEC, records[index], kind), **fields)
        records[index] = records[index]._replace(value=CODEC.encode(now))

    def event(self, index: int) -> r.Event:
        found: r.Event = decoded(CODEC, self.log.partition("events", 0)[index], r.Event)
        return found

    def drop(self, index: int, topic: str = "events") -> None:
        """As if it had never been written: what follows moves up, its numbers too."""
        records = self.log.partition(topic, 0)
        gone = records.pop(index)
        for i in range(index, len(records)):
            records[i] = records[i]._replace(offset=records[i].offset - 1)
            if topic == "events" and records[i].value is not None and gone.value is not None:
                self.change(i, sequence=self.event(i).sequence - 1)

    def copy(self, index: int, before: int, **fields: Any) -> None:
        """Write a record again, at another place."""
        records = self.log.partition("events", 0)
        sequence = next(self.event(i).sequence for i in range(before, len(records)) if records[i].value is not None)
        added = records[index]._replace(offset=records[before].offset)
        for i in range(before, len(records)):
            records[i] = records[i]._replace(offset=records[i].offset + 1)
            if records[i].value is not None:
                self.change(i, sequence=self.event(i).sequence + 1)
        records.insert(before, added)
        self.change(before, sequence=sequence, **fields)


Fault = Callable[[Doctor], None]
FAULTS: dict[str, tuple[str, Fault]] = {}


def planted(rule: str) -> Callable[[Fault], Fault]:
    def register(fault: Fault) -> Fault:
        FAULTS[fault.__name__.strip("_").replace("_", " ")] = (rule, fault)
        return fault

    return register


@planted("transition")
def _a_task_skips_a_state(d: Doctor) -> None:
    d.change(d.at("task/done/0/0", "DEPLOYING"), to="FINISHED")


@planted("from")
def _a_transition_leaves_a_state_that_was_not(d: Doctor) -> None:
    d.change(d.at("task/done/0/0", "RUNNING"), from_="CREATED")


@planted("from")
def _a_transition_is_lost(d: Doctor) -> None:
    d.drop(d.at("task/done/0/0", "RUNNING"))


@planted("sequence")
def _an_event_has_a_number_that_was_used(d: Doctor) -> None:
    at = d.at("task/done/0/0", "RUNNING")
    d.change(at, sequence=d.event(at).sequence - 1)


@planted("epoch")
def _a_fenced_leader_writes_on(d: Doctor) -> None:
    d.change(d.at("task/more/0/0", "FAILED"), epoch=1)


@planted("epoch")
def _a_reign_begins_without_an_election(d: Doctor) -> None:
    d.drop(d.at("leader/0", count=1))


@planted("epoch")
def _an_epoch_is_used_by_two(d: Doctor) -> None:
    d.change(d.at("leader/0", count=1), epoch=1)


@planted("logic")
def _older_logic_leads_over_newer(d: Doctor) -> None:
    d.change(d.at("leader/0", count=0), logic=2)


@planted("transition")
def _a_finished_job_runs_again(d: Doctor) -> None:
    at = d.at("job/done", "RUNNING")
    d.copy(at, d.at("cleanup/done/1", "REMOVING"), from_="FINISHED", epoch=2)


@planted("Z1")
def _a_new_leader_restores_a_job_that_nobody_asked_for(d: Doctor) -> None:
    cause = r.Cause(kind="ELECTION", note="restored")
    d.change(d.at("job/off", "CREATED"), cause=cause)


@planted("Z1")
def _a_task_of_an_ended_job_still_runs(d: Doctor) -> None:
    d.drop(d.at("task/done/0/1", "FINISHED"))


@planted("outcome")
def _a_command_is_never_answered(d: Doctor) -> None:
    d.drop(d.at("command/off/cmd-3"))


@planted("outcome")
def _a_command_is_answered_twice(d: Doctor) -> None:
    d.copy(d.at("command/done/cmd-0"), d.at("command/more/cmd-1"))


@planted("cause")
def _an_outcome_answers_another_command(d: Doctor) -> None:
    at = d.at("command/more/cmd-1")
    d.change(at, cause=r.Cause(kind="INPUT", topic="commands", partition=0, offset=0))


@planted("attempt")
def _an_attempt_is_used_again(d: Doctor) -> None:
    for count in (1, 2):
        d.change(d.at("task/more/0/0", "CREATED", count), attempt=1)


@planted("attempt")
def _an_attempt_grows_without_a_reason(d: Doctor) -> None:
    d.change(d.at("task/done/0/0", "RUNNING"), attempt=2)


@planted("R6")
def _a_checkpoint_id_is_used_twice(d: Doctor) -> None:
    at = d.at("pending/more/0", "TRIGGERED", 1)
    d.change(at, state=msgspec.structs.replace(d.event(at).state, id=1))


@planted("in flight")
def _a_checkpoint_is_triggered_before_the_last_is_committed(d: Doctor) -> None:
    d.drop(d.at("checkpoint/more/0", "COMMITTED"))


@planted("ack")
def _a_checkpoint_completes_without_the_word_of_a_task(d: Doctor) -> None:
    d.drop(d.at("ack/done/0/1"))


@planted("R5")
def _a_mark_outlives_its_attempt(d: Doctor) -> None:
    d.change(d.at("ready/done/0/1"), attempt=7)


@planted("cause")
def _a_mark_that_no_worker_gave(d: Doctor) -> None:
    at = d.at("ready/done/0/1")
    d.change(at, cause=msgspec.structs.replace(d.event(at).cause, offset=1))


@planted("R3")
def _a_mark_is_not_written(d: Doctor) -> None:
    d.drop(d.at("ready/done/0/1"))


@planted("R2")
def _all_are_ready_and_nothing_follows(d: Doctor) -> None:
    d.drop(d.at("pending/done/0", "TRIGGERED", 1))


@planted("boundary")
def _a_transaction_ends_without_its_cursor(d: Doctor) -> None:
    records = d.log.partition("events", 0)
    del records[d.at("cursor/0", count=5)]


@planted("boundary")
def _a_transaction_goes_on_after_its_cursor(d: Doctor) -> None:
    records = d.log.partition("events", 0)
    after = d.at("cursor/0", count=5)
    for i in range(after + 1, len(records)):
        records[i] = records[i]._replace(offset=records[i].offset - 1)


@planted("boundary")
def _the_log_ends_in_the_middle(d: Doctor) -> None:
    d.log.partition("events", 0).pop()


@planted("cursor")
def _a_cursor_goes_back(d: Doctor) -> None:
    at = d.at("cursor/0", count=9)
    positions = tuple(msgspec.structs.replace(p, offset=0) for p in d.event(at).state.positions)  # type: ignore[union-attr]
    d.change(at, state=msgspec.structs.replace(d.event(at).state, positions=positions))


@planted("cursor")
def _an_input_is_decided_on_twice(d: Doctor) -> None:
    at = d.at("task/more/0/0", "FAILED")
    d.change(at, cause=msgspec.structs.replace(d.event(at).cause, offset=0))


@planted("B10")
def _a_key_is_left_of_a_job_that_is_gone(d: Doctor) -> None:
    d.drop(d.at("ready/done/0/1", "-"))


@planted("deletion")
def _a_job_is_deleted_while_it_runs(d: Doctor) -> None:
    records = d.log.partition("events", 0)
    d.drop(d.at("job/done", "-"))
    at = d.at("checkpoint/more/0", "COMPLETED", 1)
    headers = (("epoch", b"2"), ("incarnation", b"2"))
    records[at] = Record("events", 0, records[at].offset, b"job/more", None, headers)


@planted("T3")
def _a_cleanup_deletes_what_another_incarnation_owns(d: Doctor) -> None:
    records, at = d.log.partition("events", 0), d.at("task/done/0/0", "-")
    records[at] = records[at]._replace(headers=(("epoch", b"2"), ("incarnation", b"9")))


@planted("T2")
def _a_job_ends_without_a_promise_of_cleanup(d: Doctor) -> None:
    d.drop(d.at("cleanup/off/3"))


@planted("T2")
def _a_cleanup_begins_too_early(d: Doctor) -> None:
    d.change(d.at("cleanup/done/1", "REMOVING"), time=1)


@planted("T6")
def _a_cleanup_is_forgotten(d: Doctor) -> None:
    d.drop(d.at("cleanup/done/1", "REMOVING"))


@planted("Z4")
def _a_pipeline_runs_with_nothing_due(d: Doctor) -> None:
    for count in range(100):
        try:
            d.change(d.at("pipeline/more/0", "RUNNING", count), due_at=0)
        except IndexError:
            return


@planted("Z2")
def _a_job_is_called_running_while_its_pipeline_is_not(d: Doctor) -> None:
    for _ in range(2):  # it is restarted, and that is counted
        d.change(d.at("job/more", "SCHEDULED", 1), to="RUNNING")


@planted("B2")
def _a_task_is_restored_from_an_older_checkpoint(d: Doctor) -> None:
    orders = [decoded(CODEC, x, r.Order) for x in d.log.partition("orders", 0)]
    at = next(i for i, o in enumerate(orders) if o and o.attempt == 2 and isinstance(o.action, r.Deploy))
    d.change(at, "orders", action=msgspec.structs.replace(orders[at].action, checkpoint=0, position=b""))


@planted("staged")
def _a_worker_is_told_to_publish_what_no_checkpoint_names(d: Doctor) -> None:
    orders = [decoded(CODEC, x, r.Order) for x in d.log.partition("orders", 0)]
    at = next(i for i, o in enumerate(orders) if o and isinstance(o.action, r.CommitCheckpoint))
    stray = r.Staged(name="stray", rows=1, size=1)
    d.change(at, "orders", action=msgspec.structs.replace(orders[at].action, staged=(stray,)))


@planted("order")
def _a_deployment_is_decided_and_never_ordered(d: Doctor) -> None:
    orders = [decoded(CODEC, x, r.Order) for x in d.log.partition("orders", 0)]
    d.drop(next(i for i, o in enumerate(orders) if o and o.attempt == 2 and isinstance(o.action, r.Deploy)), "orders")


@planted("B10")
def _an_order_still_stands_for_a_job_that_is_gone(d: Doctor) -> None:
    d.drop(d.at("w/done/0/1", "-", topic="orders"), "orders")


@planted("dead letter")
def _garbage_is_skipped_silently(d: Doctor) -> None:
    d.log.add(Record("commands", 0, len(d.log.partition("commands", 0)), b"k", b"garbage"))


@planted("readable")
def _an_event_can_not_be_read(d: Doctor) -> None:
    records, at = d.log.partition("events", 0), d.at("summary/done/1")
    records[at] = records[at]._replace(value=b"garbage")


@planted("D1")
def _an_attempt_is_started_twice(d: Doctor) -> None:
    d.starts.append(d.starts[-1])


@planted("D1")
def _an_attempt_runs_where_it_was_not_started(d: Doctor) -> None:
    d.starts[-1] = ("w2", d.starts[-1][1])


@planted("twice")
def _a_row_is_published_twice(d: Doctor) -> None:
    publish(d.root / "done", "done-1-0-2-c", "in0 2", "in0 3", "in0 0")


@planted("lost")
def _a_row_is_lost(d: Doctor) -> None:
    publish(d.root / "done", "done-1-0-2-c", "in0 2")


@planted("void")
def _rows_are_published_that_no_checkpoint_covers(d: Doctor) -> None:
    publish(d.root / "more", "more-2-0-2-d", "in0 2", "in0 3")


@planted("void")
def _a_file_is_published_that_no_checkpoint_names(d: Doctor) -> None:
    (d.root / "more/more-2-0-2-d").rename(d.root / "more/more-2-0-2-stray")


@planted("R7")
def _staging_is_left_of_a_job_that_is_gone(d: Doctor) -> None:
    publish(d.root / "done/.staging/done-1", "piece", "in0 9")


def judged(doctor: Doctor) -> list[Finding]:
    return check(doctor.log, starts=doctor.starts)


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(a_run(tmp_path).log, tmp_path)


def test_a_legal_run_has_no_findings(doctor: Doctor) -> None:
    assert judged(doctor) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(doctor: Doctor, fault: str) -> None:
    rule, plant = FAULTS[fault]
    plant(doctor)
    found = judged(doctor)
    assert rule in {finding.rule for finding in found}, [str(finding) for finding in found]


def test_a_finding_says_where(doctor: Doctor) -> None:
    at = doctor.at("task/done/0/0", "RUNNING")
    doctor.change(at, from_="CREATED")
    offset = doctor.log.partition("events", 0)[at].offset
    assert (
        str(judged(doctor)[0]) == f"[from] events/0@{offset}: task/done/0/0 says it left 'CREATED', it was 'DEPLOYING'"
    )


def test_what_a_test_planted_itself_is_no_finding(doctor: Doctor) -> None:
    """But whatever follows from it is judged."""
    records = doctor.log.partition("events", 0)
    at = doctor.at("cursor/0", count=5)
    for i in range(at + 1, len(records)):
        records[i] = records[i]._replace(offset=records[i].offset + 2)
    place = ("events", 0, records[at].offset + 2)
    records.insert(at + 1, Record(*place, b"summary/more/2", b"garbage"))
    assert "readable" in {finding.rule for finding in judged(doctor)}
    assert check(doctor.log, starts=STARTS, planted=[place]) == []


def test_a_reader_along_the_way_saw_the_same(doctor: Doctor) -> None:
    now = doctor.log
    recorded = replace(now, records={where: list(found) for where, found in now.records.items()})
    assert differences(recorded, now) == []
    events = recorded.records["events", 0]
    events.append(events[-1])
    assert "twice or out of order" in differences(recorded, now)[0]
    events.pop()
    lost = events.pop()
    assert "never got" in differences(recorded, now)[0]
    events += [lost, lost._replace(offset=lost.offset + 1)]
    assert "not there any more" in differences(recorded, now)[0]


def test_compaction_may_take_what_was_superseded_and_nothing_else(doctor: Doctor) -> None:
    recorded = doctor.log
    newest = {record.key: record for record in recorded.partition("events", 0)}
    left = Log(1, dict(recorded.records) | {("events", 0): list(newest.values())})
    assert differences(recorded, left)
    assert differences(recorded, left, compacted=True) == []
    del newest[b"task/more/0/0"]
    left.records["events", 0] = list(newest.values())
    assert "task/more/0/0" in differences(recorded, left, compacted=True)[0]


def test_an_onlooker_sees_a_row_that_comes_twice_and_one_that_goes(tmp_path: Path) -> None:
    publish(tmp_path / "out", "one", "a 1", "a 2")
    with Onlooker(tmp_path) as onlooker:
        publish(tmp_path / "out", "two", "a 3")
    assert onlooker.stop() == []
    assert onlooker.rows == 3
    publish(tmp_path / "out", "three", "a 2")
    (tmp_path / "out/one").unlink()
    onlooker._look()
    assert [finding.rule for finding in onlooker.findings] == ["gone", "twice"]
