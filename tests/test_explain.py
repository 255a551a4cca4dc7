"""What `detent explain` says: golden texts for the stories of the scenarios, jobs in the midst of their lives, and that
nothing that ever happened leaves it without words."""

from __future__ import annotations

import pytest

from coordinator.cluster_viewing import worker_views
from coordinator.explain import Explanation, explain
from coordinator.history import of_job, seen
from coordinator.phrases import count, duration, listing, numbers, sentence, tasks
from coordinator.viewing import job_detail
from coordinator.views import ShardView
from coordinator.waits import Wait, waits
from detent.explain_text import explanation_lines
from events.records import (
    CheckpointAcked,
    CheckpointCommitted,
    CheckpointFailed,
    Event,
    Pause,
    Staged,
    TaskFailed,
    TaskReady,
    TaskRunning,
    TaskStalled,
)
from events.table import transactions
from tests.explained import CODEC, FOLDER, GOLDEN, explained, jobs_of, raws, text_of, when
from tests.published import events_of
from tests.scenarios.runner import tell
from tests.scenarios.story import Story, all_stories
from tests.shard import LEASE_MS, Shard


@pytest.mark.parametrize("name", GOLDEN)
def test_explanations_of_the_stories_read_as_they_should(name: str) -> None:
    wanted = (FOLDER / f"{name}.txt").read_text()
    assert text_of(name) == wanted, "read the difference; if it is better so: python -m tests.explained --write"


@pytest.mark.parametrize("story", all_stories(), ids=lambda story: str(story.name))
def test_every_story_can_be_explained_at_any_moment(story: Story) -> None:
    broker = tell(story).broker
    log = events_of(broker)
    ends = [i + 1 for i, event in enumerate(log) if event.entity == "cursor/0"]
    for job, incarnation in jobs_of(broker):
        for end in ends[:: max(1, len(ends) // 12)]:
            known = {(e.job, e.incarnation) for e in log[:end] if isinstance(e, Event)}
            if (job, incarnation) in known:
                _check(explained_or_none(log[:end], job, incarnation))
        _check(explained(broker, job, incarnation))


def explained_or_none(log: list, job: str, incarnation: int) -> Explanation | None:  # type: ignore[type-arg]
    """None where neither the job nor its summary is there at that moment."""
    shard = Shard()
    shard.log = log
    shard.elect()
    now = max(event.time for event in log if isinstance(event, Event))
    detail = job_detail(shard.state, job, now, incarnation=incarnation)
    if detail is None:
        return None
    history = list(seen(transactions(raws(log), b"cursor/0"), CODEC, 0, of_job(job)))
    return explain(detail, history, now, when, waits(detail, None, []))


def _check(said: Explanation | None) -> None:
    if said is None:
        return
    assert said.headline
    assert said.why
    assert said.story
    for line in explanation_lines(said, when):
        assert "None" not in line


@pytest.fixture
def shard() -> Shard:
    made = Shard()
    made.worker("w1")
    return made


def say(shard: Shard, **more: object) -> Explanation:
    detail = job_detail(shard.state, "a", shard.now)
    assert detail is not None
    history = list(seen(transactions(raws(shard.log), b"cursor/0"), CODEC, 0, of_job("a")))
    workers = worker_views([shard.state], shard.state.heard, shard.now, LEASE_MS)
    return explain(detail, history, shard.now, str, waits(detail, None, workers, str(more.get("silent", ""))))


def what(said: Explanation) -> list[str]:
    return [wait.what for wait in said.waits]


def test_a_job_that_has_no_room_says_so_and_what_to_do(shard: Shard) -> None:
    shard.submit("a", 6)
    said = say(shard)
    assert what(said)[0] == "Room on a worker for tasks 0/4 and 0/5: all slots are taken (w1 uses 4 of 4)."
    assert "Start another worker" in said.waits[0].moves
    assert said.why[0] == "It is CREATED and not RUNNING because 2 tasks are CREATED and 4 tasks are DEPLOYING."
    assert what(say(a_shard_without_workers())) == ["Room on a worker for task 0/0: no worker is heard."]


def a_shard_without_workers() -> Shard:
    shard = Shard()
    shard.submit("a", 1)
    return shard


def test_a_job_that_wants_labels_nobody_has_says_which(shard: Shard) -> None:
    shard.submit("a", 1, labels={"zone": "eu"})
    assert what(say(shard)) == [
        "Room on a worker for task 0/0: none of the 1 worker that are heard has the labels zone=eu."
    ]


def test_a_job_that_restarts_says_when_and_why(shard: Shard) -> None:
    shard.submit("a", 1, restart={"backoff_ms": 5000})
    shard.report("a", 0, TaskRunning())
    shard.report("a", 0, TaskFailed(reason="the disk is full"))
    said = say(shard)
    assert what(said) == ["Task 0/0 to start again as attempt 2, after: the disk is full."]
    assert said.waits[0].until == shard.now + 5000
    assert said.why[1].startswith(f"Task 0/0, attempt 1 on w1, failed at {shard.now}: the disk is full")


def test_a_stalled_task_says_what_would_move_it(shard: Shard) -> None:
    shard.submit("a", 1, restart_stalled=False)
    shard.report("a", 0, TaskRunning())
    shard.report("a", 0, TaskStalled(progressed_at=shard.now - 7000, reason="reading"))
    said = say(shard)
    assert what(said) == ["Task 0/0 on w1 to make progress: no progress for 7.0 s: reading."]
    assert "repair a" in said.waits[0].moves


def test_a_job_that_pauses_waits_for_its_checkpoint_and_a_paused_one_for_somebody(shard: Shard) -> None:
    shard.submit("a", 1)
    shard.report("a", 0, TaskRunning())
    shard.command("a", Pause())
    shard.report("a", 0, CheckpointAcked(checkpoint=1, position=b"1", staged=(Staged(name="x", rows=1, size=1),)))
    assert what(say(shard)) == ["Checkpoint 1 of pipeline 0 to be published (try 1)."]
    shard.report("a", -1, CheckpointFailed(checkpoint=1, reason="database lock", tries=1), worker="w1")
    assert what(say(shard)) == [
        "Checkpoint 1 of pipeline 0 to be published (try 1; the last try failed: database lock)."
    ]
    shard.report("a", -1, CheckpointCommitted(checkpoint=1), worker="w1")
    said = say(shard)
    assert (what(said), "resume a" in said.waits[0].moves) == (["Somebody's word: it is paused."], True)


def test_a_healthy_job_waits_for_nothing_but_its_data(shard: Shard) -> None:
    shard.submit("a", 2)
    for task in (0, 1):
        shard.report("a", task, TaskRunning())
    assert what(say(shard)) == ["Nothing but its data: 2 tasks of 2 still read."]
    shard.report("a", 0, TaskReady())
    assert what(say(shard)) == ["Nothing but its data: 1 task of 2 still read."]
    shard.report("a", 1, TaskReady())
    assert what(say(shard)) == ["Tasks 0/0 and 0/1 to acknowledge the final checkpoint 1."]


def test_without_a_leader_nothing_moves_and_that_comes_first(shard: Shard) -> None:
    shard.submit("a", 1)
    said = say(shard, silent="c1 has not been heard for 2 min")
    assert what(said)[0] == "Nobody decides for it: c1 has not been heard for 2 min."
    assert waits(job_detail(shard.state, "a", 0), ShardView(shard=0, state="VACANT", since=7), [], "x")[0] == Wait(  # type: ignore[arg-type]
        what="Nobody decides for it: x.",
        since=7,
        moves="Start a coordinator (`detent coordinator`): it goes on where the last one was.",
    )


def test_of_a_long_life_the_beginning_and_the_end_are_told(shard: Shard) -> None:
    shard.submit("a", 1, restart={"retries": 1000, "backoff_ms": 1, "max_backoff_ms": 1})
    for _ in range(30):
        shard.report("a", 0, TaskRunning())
        shard.report("a", 0, TaskFailed(reason="again"))
        shard.wait(1)
    said = say(shard)
    short, long = list(explanation_lines(said, str)), list(explanation_lines(said, str, everything=True))
    told = [line for line in short if " more; --all tells them" in line]
    assert told == [f"  … {len(said.story) - 50} more; --all tells them, `detent log a` every transition"]
    assert len(long) == len(short) + len(said.story) - 50 - 1


def test_words() -> None:
    assert [duration(ms) for ms in (7, 2300, 61_000, 120_000, 3_900_000, 7_200_000, 400_000_000)] == [
        "7 ms", "2.3 s", "1 min 1 s", "2 min", "1 h 5 min", "2 h", "4 days",
    ]  # fmt: skip
    assert (listing([]), listing(["a"]), listing("abc"), listing("abcdefghi", 2)) == (
        "nothing", "a", "a, b and c", "a, b and 7 more",
    )  # fmt: skip
    assert (count(1, "row"), count(2000, "row")) == ("1 row", "2,000 rows")
    assert numbers([5, 1, 2, 3, 9, 8]) == "1 to 3, 5, 8 and 9"
    assert tasks([(0, 1)]) == "task 0/1"
    assert tasks([(0, n) for n in range(100)]) == "tasks 0/0 to 0/99"
    assert (sentence("it is so"), sentence("")) == ("It is so.", "")
