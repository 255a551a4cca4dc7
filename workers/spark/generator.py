"""The source `generator`: rows that follow from their numbers alone, so that they can be had again at any time.

Task `share` of `shares` has the numbers share, share + shares, … A position is how many of them were handed out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from workers.plan import Step, options_of
from workers.spark.api import Context, Refused, Slice, Unservable
from workers.spark.options import GeneratorOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST_ROWS = 50_000
FEW_ROWS = 20_000  # so many fit one partition: each costs something
BYTES = 8


class Generator:
    def __init__(self, context: Context, step: Step, share: int, shares: int) -> None:
        self._options = options_of(step, GeneratorOptions)
        self._context, self._name, self._share, self._shares = context, step.name, share, shares
        self._began, self._began_at = 0.0, 0
        rows = self._options.rows
        self._total = rows if rows < 0 else len(range(share, rows, shares))
        self.first_goal = FIRST_ROWS

    def begin(self, position: bytes, checkpoint: int) -> bytes:
        done = 0
        if position:
            done = self._done(position)
            if done < 0 or 0 <= self._total < done:
                has = f"this task has {self._total} rows" if self._total >= 0 else "a position is a number of rows"
                raise Unservable(self._name, checkpoint, position, has)
        self._began, self._began_at = time.monotonic(), done
        return b"%d" % done

    def next_slice(self, after: bytes, goal: int) -> Slice | None:
        done = self._done(after)
        count = min(goal, self._options.slice_rows or goal)
        if self._options.rate > 0:
            elapsed_s = time.monotonic() - self._began
            count = min(count, self._began_at + int(elapsed_s * self._options.rate / self._shares) - done)
        if self._total >= 0:
            count = min(count, self._total - done)
        if count <= 0:
            return None
        return Slice(self._frame(done, count), b"%d" % (done + count), count, count, count * BYTES)

    def at_end(self, position: bytes) -> bool:
        return self._done(position) == self._total

    def close(self) -> None:
        """Nothing is held."""

    def _frame(self, done: int, count: int) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        session, options = self._context.session(), self._options
        first = options.start + self._share + done * self._shares
        partitions = 1 if count <= FEW_ROWS else None
        frame = session.range(first, first + count * self._shares, self._shares, partitions)
        if not options.columns:
            return frame
        try:
            seeded = frame.selectExpr("id", f"{options.seed}L AS seed")
            quoted = [f"{text} AS `{name.replace('`', '``')}`" for name, text in options.columns.items()]
            return seeded.selectExpr("id", *quoted)
        except (AnalysisException, ParseException) as error:
            raise Refused(f"a column of source {self._name!r} can't be made: {error}") from error

    def _done(self, position: bytes) -> int:
        return msgspec.json.decode(position, type=int)
