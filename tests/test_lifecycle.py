"""The life cycles: the tables hold together, every state and transition is decided by them, and the page is theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator import lifecycle
from coordinator.lifecycle import TABLES, IllegalTransition, allows, reach, states
from events.keys import KINDS

ROOT = Path(__file__).parent.parent


def test_every_kind_of_entity_has_a_table() -> None:
    assert set(TABLES) == set(KINDS)


@pytest.mark.parametrize("kind", TABLES)
def test_every_state_and_transition(kind: str) -> None:
    """Exhaustively: what the table lists is reached, everything else is one error that names kind, event and state."""
    for transition, row in TABLES[kind].items():
        for state in ["", *states(kind)]:
            if state in row.leaves:
                assert reach(kind, transition, state) == (state if row.reaches == "=" else row.reaches)
                assert allows(kind, transition, state)
            else:
                with pytest.raises(IllegalTransition, match=f"{kind}: '{transition}' is not legal from"):
                    reach(kind, transition, state)
                assert not allows(kind, transition, state)


def reachable(kind: str) -> set[str]:
    found, todo = set[str](), [""]
    while todo:
        state = todo.pop()
        for row in TABLES[kind].values():
            if state in row.leaves and (after := state if row.reaches == "=" else row.reaches) not in found:
                found.add(after)
                todo.append(after)
    return found


@pytest.mark.parametrize("kind", TABLES)
def test_every_state_can_be_reached(kind: str) -> None:
    assert reachable(kind) == set(states(kind))


def test_Z1_terminal_is_final() -> None:
    for transition, row in lifecycle.JOB.items():
        assert not set(row.leaves) & lifecycle.TERMINAL_JOB, transition
    for transition, row in lifecycle.TASK.items():
        if row.reaches != "=":
            assert not set(row.leaves) & lifecycle.TERMINAL_TASK, transition


def test_every_job_can_end() -> None:
    """From every state that is not terminal, cancelling is one step or the end is under way."""
    for state in set(states("job")) - lifecycle.TERMINAL_JOB:
        assert allows("job", "cancelling", state) or state in lifecycle.ENDING_JOB


def test_the_page_is_what_the_tables_say() -> None:
    assert (ROOT / "docs/lifecycles.md").read_text() == lifecycle.page(), "run `make docs`"
