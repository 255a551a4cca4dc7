"""Tells stories: as they are written, and with the leader made to die at its boundaries besides."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator

from tests.scenarios.actions import WORKERS
from tests.scenarios.endings import ENDINGS
from tests.scenarios.script import Script
from tests.scenarios.story import Story, StoryError, all_stories

SEED = int(os.environ.get("SCENARIO_SEED", "1"))


def stage_for(story: Story, crashes: tuple[int, ...] = ()) -> Script:
    """Everything in place; the leader dies at the boundaries that are numbered, besides what the story says."""
    return Script(story, *_cast(story), crashes=crashes)


def perform(stage: Script, story: Story) -> None:
    """Raises AssertionError when the story does not end as it must."""
    try:
        stage.run()
        for line in (*story.ends, *(() if stage.crashes else story.seen)):
            if wrong := ENDINGS.say(stage, line):
                raise AssertionError(f"it should be that {line}; but {wrong}")
    except Exception as error:
        numbers = ",".join(map(str, sorted(stage.crashes)))
        name = f"{story.name[:40]}{' --crash ' if numbers else ''}{numbers}"
        error.add_note(f"replay it: python -m tests.scenarios --story {name} --trace")
        raise


def tell(story: Story, crashes: tuple[int, ...] = ()) -> Script:
    stage = stage_for(story, crashes)
    perform(stage, story)
    return stage


def _cast(story: Story) -> tuple[int, int]:
    """How many workers take part, and how many tasks each can run."""
    said = re.fullmatch(WORKERS, story.script[0].text)
    return (int(said[1]), int(said[2] or 4)) if said else (2, 4)


def trace_of(stage: Script) -> str:
    return stage.trace.text()


def boundaries(story: Story) -> int:
    """How many places the leader passes in the story as it is written: before each record, before and after commits."""
    return tell(story).boundaries


def sweep(story: Story, seed: int = SEED) -> Iterator[tuple[int, ...]]:
    """Every telling with the leader dead at one boundary, and for each of them one with a second death, after the
    first, where the seed says. Raises as `tell` does."""
    for first in range(1, boundaries(story) + 1):
        passed = tell(story, (first,)).boundaries
        yield (first,)
        if passed > first:
            second = random.Random(f"{seed} {story.name} {first}").randint(first + 1, passed)
            tell(story, (first, second))
            yield (first, second)


def find(name: str) -> list[Story]:
    stories = all_stories()
    found = [story for story in stories if story.id == name] or [s for s in stories if s.name.startswith(name)]
    if not found:
        raise StoryError(f"no story is called {name}; `--list` names them")
    return found
