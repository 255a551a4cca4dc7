"""The source `format`: any batch format of Spark, in ranges of a key column, `after < key <= until`.

A position is the last key that was passed, and for a bounded source the highest key there was at the beginning. How
wide a range is follows from how many rows there were between the lowest and the highest key: how many rows a slice has
is an estimate, which rows is not. Keys are counted as whole numbers: dates in days, timestamps in microseconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from workers.plan import OptionsRefused, Step, options_of
from workers.secrets import Secrets
from workers.spark.api import Context, Refused, Slice, Unservable
from workers.spark.part_options import FormatSourceOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FIRST_GOAL = 50_000  # rows
NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint"})


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    after: int  # all up to this key were read
    end: int | None = None  # of a bounded source
    density: float = 1.0  # rows for each step of the key, about

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)


class FormatSource:
    def __init__(self, context: Context, step: Step, share: int, shares: int) -> None:
        self._options = options = options_of(step, FormatSourceOptions)
        self._context, self._name, self._share, self._shares = context, step.name, share, shares
        given = Secrets(step.name).values(options.options)
        self._given = {name: value if isinstance(value, bool) else str(value) for name, value in given.items()}
        if "path" in self._given and options.path:
            raise OptionsRefused(f"{step.name!r} has its path twice: in path, and in options")
        self._frame: DataFrame | None = None
        self._highest: int | None = None
        self._looked_at = 0.0

    @property
    def first_goal(self) -> int:
        return FIRST_GOAL

    def begin(self, position: bytes, checkpoint: int) -> bytes:
        lowest, highest, count = self._range()
        if position:
            return self._resumed(position, checkpoint, highest)
        if lowest is None or highest is None:
            after = -(2**63) if self._options.continuous else 0
            return Position(after, None if self._options.continuous else after).encoded()
        density = max(1e-12, count / (highest - lowest + 1))
        return Position(lowest - 1, None if self._options.continuous else highest, density).encoded()

    def next_slice(self, after: bytes, goal: int) -> Slice | None:
        at = msgspec.json.decode(after, type=Position)
        end = at.end if at.end is not None else self._growing(at.after)
        if end is None or at.after >= end:
            return None
        start = at.after
        if start == -(2**63):  # it was empty when the job began
            lowest, _, count = self._range()
            assert lowest is not None
            start, at = lowest - 1, Position(lowest - 1, at.end, max(1e-12, count / (end - lowest + 1)))
        until = min(end, start + max(1, int(goal / (at.density / self._shares))))
        key = self._key()
        rows = self._loaded().where((key > start) & (key <= until))
        if self._shares > 1:
            from pyspark.sql import functions as f

            rows = rows.where(f.pmod(f.xxhash64(key), f.lit(self._shares)) == self._share)
        weight = max(1, round((until - start) * at.density / self._shares))
        return Slice(rows, Position(until, at.end, at.density).encoded(), weight=weight)

    def at_end(self, position: bytes) -> bool:
        at = msgspec.json.decode(position, type=Position)
        return at.end is not None and at.after >= at.end

    def close(self) -> None:
        """Nothing is held."""

    # What there is ---------------------------------------------------------------------------------------------------

    def _loaded(self, *, anew: bool = False) -> DataFrame:
        if self._frame is None or anew:
            from py4j.protocol import Py4JJavaError
            from pyspark.errors import PySparkException

            options = self._options
            reader = self._context.session().read.format(options.format).options(**self._given)
            if options.schema:
                reader = reader.schema(options.schema)
            try:
                self._frame = reader.load(options.path) if options.path else reader.load()
            except (PySparkException, Py4JJavaError) as error:
                told = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
                words = told.partition("\n")[0]
                raise Refused(f"{self._name!r} can't be read as {options.format}: {words}") from error
        return self._frame

    def _key(self) -> Column:
        from pyspark.sql import functions as f

        frame, name = self._loaded(), self._options.key_column
        if name not in frame.columns:
            raise Refused(f"{self._name!r} has no column {name} to be read by; it has {', '.join(frame.columns)}")
        kind, column = frame.schema[name].dataType.simpleString(), frame[name]
        if kind in NUMBERS or (kind.startswith("decimal") and kind.endswith(",0)")):
            return column.cast("bigint")
        if kind == "date":
            return f.unix_date(column).cast("bigint")
        if kind in ("timestamp", "timestamp_ntz"):
            return f.unix_micros(column.cast("timestamp"))
        raise Refused(f"{self._name!r}: {name} is {kind}; it must be a whole number, a date or a timestamp")

    def _range(self) -> tuple[int | None, int | None, int]:
        """The lowest and highest key, and how many rows there are. One job of Spark."""
        from pyspark.sql import functions as f

        self._loaded(anew=True)
        key = self._key()
        nulls = f.sum(f.when(key.isNull(), 1).otherwise(0))
        found = self._loaded().agg(f.min(key), f.max(key), f.count(f.lit(1)), nulls).collect()[0]
        if found[3]:
            raise Refused(f"{self._name!r}: {self._options.key_column} is null in {found[3]} rows, never to be read")
        self._highest, self._looked_at = found[1], time.monotonic()
        return found[0], found[1], int(found[2])

    def _growing(self, after: int) -> int | None:
        """The highest key, looked for now and then."""
        due = time.monotonic() >= self._looked_at + self._options.poll_ms / 1000
        if (self._highest is None or self._highest <= after) and due:
            self._range()
        return self._highest

    def _resumed(self, position: bytes, checkpoint: int, highest: int | None) -> bytes:
        try:
            at = msgspec.json.decode(position, type=Position)
        except msgspec.MsgspecError as error:
            has = f"it is no position of this source ({error})"
            raise Unservable(self._name, checkpoint, position, has) from error
        if self.at_end(position):
            return position
        wanted = at.end if at.end is not None else at.after
        if wanted > -(2**63) and (highest is None or highest < wanted):
            has = (
                f"the highest {self._options.key_column} is {highest} now" if highest is not None else "it is empty now"
            )
            raise Unservable(self._name, checkpoint, position, has)
        return position
