"""How much the next slice should hold: by the time that the last ones took. Pure: it never looks at a clock.

A batch has a price before it does anything, so slices are as long as they may be; a checkpoint waits for the slice that
runs, so they are no longer than that. A slice that took too long shrinks the next at once; growth goes by doubling.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_GROWTH = 4.0
STEADY = 1.25  # within this factor of the target nothing changes: sources may cut on boundaries of their own


@dataclass
class Pace:
    goal: int  # weight, in the source's own unit
    target_s: float

    def took(self, weight: int, seconds: float) -> None:
        """A slice of this weight took so long, staging included."""
        if weight <= 0:
            return
        speed = weight / max(seconds, 1e-3)
        wanted = speed * self.target_s
        if seconds > self.target_s * STEADY:
            self.goal = max(1, int(min(self.goal, wanted)))
        elif seconds * STEADY < self.target_s and weight >= self.goal / 2:  # it was as much as was asked for
            self.goal = max(self.goal, int(min(wanted, self.goal * MOST_GROWTH)))
