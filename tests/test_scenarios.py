"""Every scenario of docs/scenarios.md by its stories: as told in tests/scenarios/*.txt, and with the leader dead at
every boundary of its log besides, and with two deaths. SCENARIO_SEED chooses where the second ones are."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from events.records import Event
from tests.scenarios.actions import ACTIONS
from tests.scenarios.runner import SEED, find, perform, stage_for, sweep, tell, trace_of
from tests.scenarios.script import Missed
from tests.scenarios.story import Story, StoryError, all_stories, read
from tests.simulation.checker import Violation
from tests.simulation.mutants import MUTANTS

ROOT = Path(__file__).parent.parent
STORIES = all_stories()


def as_told(story: Story) -> Callable[[], None]:
    def test() -> None:
        told = trace_of(tell(story))
        assert told == story.trace, "read the difference; if it is as it should be: python -m tests.scenarios --write"

    return test


def whoever_dies(story: Story) -> Callable[[], None]:
    def test() -> None:
        print(f"SCENARIO_SEED={SEED}")  # noqa: T201  shown where it fails
        tellings = list(sweep(story))
        assert len(tellings) > 100

    return test


for _story in STORIES:
    globals()[f"test_{_story.name}"] = as_told(_story)
    globals()[f"test_{_story.name}_whenever_the_leader_dies"] = whoever_dies(_story)


def test_every_scenario_has_a_test() -> None:
    wanted = re.findall(r"^- \*\*([A-Z]\d+)", (ROOT / "docs/scenarios.md").read_text(), re.MULTILINE)
    assert len(wanted) == len(set(wanted)) == 46
    source = "".join(path.read_text() for path in sorted((ROOT / "tests").glob("test_*.py")))
    names = {*re.findall(r"def (test_\w+)", source), *(name for name in globals() if name.startswith("test_"))}
    missing = [one for one in wanted if not any(name.startswith(f"test_{one}_") for name in names)]
    assert not missing, f"no test is named after {missing}"
    untold = set(wanted) - {story.id for story in STORIES}
    assert not untold, f"no story is told of {untold}"


def test_names_of_stories_are_their_own() -> None:
    assert len({story.name for story in STORIES}) == len(STORIES)


# A story must be able to fail ----------------------------------------------------------------------------------------

SEEN_BY = {
    "R: ready marks are kept only in memory": "R1",
    "R: marks are written only when all tasks are ready": "R3",
    "R: a mark outlives its attempt": "R5",
    "R: the completed point is triggered when the first task is ready": "R1",
    "R: a record that can't be read is taken for nothing": "R4_a_mark",
    "T: the cleanup's timer lives only in the leader's memory": "T2",
    "T: the end of a job promises no cleanup": "T2",
    "T: cleanup deletes before staging is removed": "T6",
    "T: cleanup deletes whatever job has the id now": "T4",
    "T: a restored job takes its predecessor's cleanup with it": "T4",
    "D: a deploy of what runs fails because it already exists": "D1",
    "D: a deploy order starts the task whether it runs or not": "D3",
    "D: a new attempt has the old one's number": "D6",
    "D: a restarted worker says nothing of what it lost": "D9_a_worker_is_killed",
    "D: what runs astray on a worker goes on": "D10_the_order",
    "Z: a new leader does not see that a job has ended": "Z1_the_leader_dies_right_after_a_job_is_failed",
    "Z: a job ends while a completed checkpoint is not committed": "Z1_a_job_is_canceled",
    "O: publishing is given up at the first lasting failure, whoever else was told": "O3_one_worker",
    "O: a worker's report is sent once and never again": "O2_the_word",
    "O: the commit is ordered once and never again": "O4",
    "O: publishing does not look for the checkpoint's identity": "O4",
    "O: any committed report counts for the checkpoint that waits": "B6_a_late_word",
    "B: a job is restored from what is completed but not published": "B2_a_restored_job",
    "B: the fold accepts records of a lower epoch": "B6_what_a_fenced",
    "B: a checkpoint in flight has no deadline": "B3",
    "B: no next checkpoint is due after one was aborted": "B3",
    "B: a restarted task starts from the beginning": "B2_a_restarted_task",
    "a checkpoint's number is used again after it was aborted": "R6",
    "a checkpoint completes without all acknowledgements": "B3",
    "output of completed checkpoints is acknowledged again": "R6",
    "a savepoint takes the checkpoint that is there already": "B8",
    "a command sent again is carried out again": "B10",
    "an incarnation is used twice": "T3",
    "every late report withdraws the order under its key": "R5",
    "orders are never withdrawn": "D5",
    "what was consumed is not written with what it led to": "B8",
    "a worker keeps its disk's promises only in memory": "D9_a_worker_is_killed",
    "after a commit without an answer the same producer goes on": "O2_the_completion",
    "after a commit without an answer the leader goes on from memory": "O2_the_completion",
    "older logic leads over what newer logic has written": "B11",
}


@pytest.mark.parametrize("what", SEEN_BY)
def test_a_story_sees_the_fault_it_is_about(what: str) -> None:
    """By how it must end, not by its trace: that would show any change."""
    (story,) = find(SEEN_BY[what])
    with ExitStack() as stack:
        MUTANTS[what](stack)
        with pytest.raises(Exception, match=r".") as seen:
            tell(story)
    assert not isinstance(seen.value, StoryError), seen.value  # it could be told, and did not end as it must


def a_story(tmp_path: Path, text: str) -> Story:
    path = tmp_path / "D1.txt"
    path.write_text(text)
    (story,) = read(path)
    return story


TEXT = """D1  A story of a test

It only has to be told.

What happens:
  submit a with 1 task of 20 rows
  {what}

How it must end:
  a ends {end}

----
"""


def test_a_moment_that_never_comes_fails_the_story(tmp_path: Path) -> None:
    story = a_story(tmp_path, TEXT.format(what="when task/a/0/0 is FAILED: kill the leader", end="FINISHED"))
    with pytest.raises(Missed, match="when task/a/0/0 is FAILED: kill the leader"):
        tell(story)


def test_an_end_that_must_be_otherwise_fails_the_story(tmp_path: Path) -> None:
    story = a_story(tmp_path, TEXT.format(what="nothing", end="CANCELED"))
    with pytest.raises(AssertionError, match=r"a ends CANCELED; but it ended \['FINISHED'\]") as seen:
        tell(story, (3,))
    assert "--story D1_a_story_of_a_test --crash 3 --trace" in seen.value.__notes__[0]


def test_what_a_story_can_not_say_is_told_with_what_it_can(tmp_path: Path) -> None:
    story = a_story(tmp_path, TEXT.format(what="let the moon fall", end="FINISHED"))
    with pytest.raises(StoryError, match="no action is written 'let the moon fall'; those known are:\n  submit"):
        tell(story)
    with pytest.raises(StoryError, match="no condition is written 'the moon falls'"):
        tell(a_story(tmp_path, TEXT.format(what="when the moon falls: nothing", end="FINISHED")))
    with pytest.raises(StoryError, match="no line ----"):
        a_story(tmp_path, "D1  A story\n")
    assert ACTIONS.known


def test_a_dead_leader_is_dead_where_it_was_said(tmp_path: Path) -> None:
    """Each boundary is another moment: before each record, before the commit, after it."""
    story = a_story(tmp_path, TEXT.format(what="nothing", end="FINISHED"))
    passed = tell(story).boundaries
    places = []
    for number in range(1, passed + 1):
        stage = stage_for(story, (number,))
        perform(stage, story)
        places += [line.split("dies at ")[1] for line in trace_of(stage).splitlines() if "dies at " in line]
    assert len(places) == passed
    assert {place.split()[0] for place in places} == {"fence", "event", "order", "commit", "committed"}
    assert {"event job/a", "event task/a/0/0", "event ready/a/0/0", "event checkpoint/a/0"} <= set(places)


def test_B8_the_history_of_every_story_can_be_had_from_its_log() -> None:
    """Offset by offset: each transition with from, to, cause, time, epoch and attempt, in an unbroken chain."""
    for story in STORIES:
        stage = tell(story)
        assert stage.trace is not None
        events = [entry for entry in stage.trace.entries if isinstance(entry.what, Event)]
        assert [entry.offset for entry in events] == sorted(entry.offset for entry in events)
        for entry in events:
            event = entry.what
            assert event.to
            assert event.transition
            assert event.time
            assert event.epoch
            assert event.cause.note or (event.cause.topic and event.cause.offset >= 0), event
            assert event.attempt or not event.entity.startswith(("task/", "ready/", "ack/")), event


def test_violations_carry_the_way_to_replay_them(tmp_path: Path) -> None:
    story = a_story(tmp_path, TEXT.format(what="let job/a rot; kill c0; kill c1", end="FINISHED"))
    with pytest.raises((Violation, AssertionError, StoryError)) as seen:
        tell(story)
    assert "replay it" in seen.value.__notes__[0]
