"""How much the next slice should hold: by the time that the last ones took. Pure: it never looks at a clock.

A slice takes a price, whatever it holds, and a time for each unit of its weight. Both are fitted to the slices seen,
the newer ones counting more. A checkpoint waits for the slice that runs, so a slice should take no longer than the
target; but where the price alone is about that much, smaller slices would only be paid for more often: then it takes
twice the price.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_CHANGE = 4.0
FADING = 0.7
SHORTEST_S = 1e-3


@dataclass
class Pace:
    goal: int  # weight, in the source's own unit
    target_s: float
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # of 1, x, y, xx, xy

    def took(self, weight: int, seconds: float) -> None:
        """A slice of this weight took so long, staging included."""
        if weight <= 0:
            return
        x, y = float(weight), max(seconds, SHORTEST_S)
        self._sums = [FADING * old + new for old, new in zip(self._sums, (1.0, x, y, x * x, x * y), strict=True)]
        if weight < self.goal / 2 and seconds <= self.target_s:
            return  # there was no more to read: that says nothing of how much would be too much
        if self._all_alike and self._sums[0] > 2 and y > 1.5 * self.target_s and weight <= self.goal:
            wanted = 2.0 * self.goal  # as small as can be and still too long: is it the price?
        else:
            price_s, unit_s = self._fitted(x, y)
            wanted = (max(self.target_s, 2 * price_s) - price_s) / unit_s
        self.goal = max(1, int(min(max(wanted, self.goal / MOST_CHANGE), self.goal * MOST_CHANGE)))

    @property
    def _all_alike(self) -> bool:
        n, sx, _, sxx, _ = self._sums
        return n * sxx - sx * sx <= 0.01 * sx * sx

    def _fitted(self, x: float, y: float) -> tuple[float, float]:
        """The price, and the time of a unit; of the last slice alone where all were alike."""
        n, sx, sy, sxx, sxy = self._sums
        if self._all_alike:
            return 0.0, y / x
        unit_s = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        price_s = min(max(0.0, (sy - unit_s * sx) / n), 0.95 * y)
        return price_s, max((y - price_s) / x, SHORTEST_S / x)
