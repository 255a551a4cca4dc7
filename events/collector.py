"""Python's cycle collector, where much lives long and nothing of it is in cycles: it would walk all of it, again and
again, for nothing, and everything waits meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# With 10,000 jobs alive a whole collection takes 200 ms and more: it is worth it once in a long while.
NEWBORN, ROUNDS, WHOLE = 100_000, 50, 100
SMALL_STEPS = (10_000, 10, 1_000)  # about 1 ms each, and every tenth 10 ms at most


def collect_rarely() -> None:
    """For a process that holds the state of a shard for as long as it lives."""
    gc.set_threshold(NEWBORN, ROUNDS, WHOLE)


def collect_in_small_steps() -> None:
    """For a process that holds as much and is asked all the time: a step is short enough to be waited for."""
    gc.set_threshold(*SMALL_STEPS)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Without it, while a table grows: bytes hold no references."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
