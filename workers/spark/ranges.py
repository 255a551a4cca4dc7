"""The source `spark`: any batch format that Spark can read, cut into ranges of a whole-number column.

Rows with `lower <= column < upper` are read, each range once; those outside, or without a value, are not. The bounds
come from the options, so that every task in every attempt cuts alike. That the data below a range is the same when it
is read again is for whoever chose the format to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from workers.plan import OptionsRefused, Step, options_of
from workers.spark.api import Context, Refused, Slice, Unservable
from workers.spark.files_sink import texts
from workers.spark.options import SparkSourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST_SLICES = 100  # a share is cut into so many until it is known how long one takes


class Ranges:
    def __init__(self, context: Context, step: Step, share: int, shares: int) -> None:
        self._options = options = options_of(step, SparkSourceOptions)
        if options.upper < options.lower:
            raise OptionsRefused(f"source {step.name!r}: upper ({options.upper}) is below lower ({options.lower})")
        width = options.upper - options.lower
        self._context, self._name = context, step.name
        self._first = options.lower + width * share // shares
        self._last = options.lower + width * (share + 1) // shares
        self._frame: DataFrame | None = None
        self.first_goal = max(1, (self._last - self._first) // FIRST_SLICES)

    def begin(self, position: bytes, checkpoint: int) -> bytes:
        at = msgspec.json.decode(position, type=int) if position else self._first
        if not self._first <= at <= self._last:
            has = f"this task has {self._options.column} from {self._first} up to {self._last}"
            raise Unservable(self._name, checkpoint, position, has)
        return b"%d" % at

    def next_slice(self, after: bytes, goal: int) -> Slice | None:
        at = msgspec.json.decode(after, type=int)
        until = min(at + max(1, goal), self._last)
        if at >= until:
            return None
        frame = self._all_rows()
        column = frame[self._options.column]
        return Slice(frame.where((column >= at) & (column < until)), b"%d" % until, until - at)

    def at_end(self, position: bytes) -> bool:
        return msgspec.json.decode(position, type=int) >= self._last

    def close(self) -> None:
        """Nothing is held."""

    def _all_rows(self) -> DataFrame:
        from pyspark.errors import AnalysisException
        from pyspark.sql.types import IntegralType

        if self._frame is not None:
            return self._frame
        options = self._options
        reader = self._context.session().read.format(options.format).options(**texts(options.options))
        try:
            frame = reader.load(options.path) if options.path else reader.load()
            kind = frame.schema[options.column].dataType
        except (AnalysisException, KeyError) as error:
            raise Refused(f"source {self._name!r} can't be read by {options.column!r}: {error}") from error
        if not isinstance(kind, IntegralType):
            raise Refused(f"source {self._name!r}: {options.column!r} is {kind.simpleString()}, not a whole number")
        self._frame = frame
        return frame
