"""The deterministic simulation, within the time of a test run: some seeds without a violation, and every planted fault
seen. `python -m tests.simulation` runs any number of seeds; the number printed replays one."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import seen_at
from tests.simulation.mutants import MUTANTS
from tests.simulation.world import World


@pytest.mark.parametrize("first", range(1, 201, 20))
def test_seeds(first: int) -> None:
    for seed in range(first, first + 20):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            error.add_note(f"replay it: python -m tests.simulation --seed {seed}")
            raise
        assert world.checker.transitions


def test_a_world_without_faults_is_a_story_without_takeovers() -> None:
    world = World(1, faults=False)
    world.run()
    assert world.counts["takeovers"] == 1
    assert set(world.checker.ended.values()) <= {"FINISHED", "CANCELED", "SAVEPOINTED"}


def test_a_seed_is_a_story_that_can_be_told_again() -> None:
    one, two = World(7), World(7)
    one.run()
    two.run()
    assert (one.counts, one.steps, one.checker.transitions) == (two.counts, two.steps, two.checker.transitions)


@pytest.mark.parametrize("what", MUTANTS)
def test_a_planted_fault_is_seen(what: str) -> None:
    assert seen_at(MUTANTS[what]) is not None, f"nobody noticed: {what}"
