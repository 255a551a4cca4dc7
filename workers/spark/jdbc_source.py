"""The source `jdbc`: a table in ranges of a key column, `after < key <= until`.

A position is the last key that was read, and for a bounded source the highest key there was at the beginning; keys are
text, as the database writes them, and are compared by the database alone. Tasks share rows by a whole number that
belongs to the row, never by when they looked. What a database shows later under a key that was passed is never read:
keys must become visible in their order.
"""

from __future__ import annotations

import re

import msgspec

from workers.plan import Step, options_of
from workers.spark.api import Context, Refused, Slice, Unservable
from workers.spark.jdbc import Database, Transaction
from workers.spark.part_options import JdbcSourceOptions

FIRST_GOAL = 20_000  # rows
FETCH_ROWS = "10000"
NUMBERS = frozenset({-6, 5, 4, -5, 2, 3, 6, 7, 8})  # java.sql.Types: TINYINT … BIGINT, NUMERIC, DECIMAL, floats
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class Position(msgspec.Struct, frozen=True):
    after: str | None = None  # None: nothing was read
    end: str | None = None  # of a bounded source; None: the table was empty
    bounded: bool = False


class JdbcSource:
    def __init__(self, context: Context, step: Step, share: int, shares: int) -> None:
        self._options = options = options_of(step, JdbcSourceOptions)
        self._name, self._share, self._shares = step.name, share, shares
        self._database = Database(context, step, options)
        self._key = self._database.dialect.quoted(options.key_column)
        self._is_number: bool | None = None

    @property
    def first_goal(self) -> int:
        return FIRST_GOAL

    def begin(self, position: bytes, checkpoint: int) -> bytes:
        with self._database.transaction() as transaction:
            self._look(transaction)
            if position:
                self._resume(transaction, position, checkpoint)
                return position
            if self._options.continuous:
                return msgspec.json.encode(Position())
            return msgspec.json.encode(Position(None, self._highest(transaction, self._conditions()), True))

    def next_slice(self, after: bytes, goal: int) -> Slice | None:
        at = msgspec.json.decode(after, type=Position)
        if self.at_end(after):
            return None
        goal = max(1, goal)
        with self._database.transaction() as transaction:
            self._look(transaction)
            where = self._conditions(at.after, at.end)
            found = transaction.one(f"{self._select(self._key, where)} ORDER BY {self._key} {self._nth(goal - 1)}")
            count = goal
            if found is not None:
                (until,) = found
            else:
                rest = transaction.one(self._select(f"COUNT(*), MAX({self._key})", where))
                assert rest is not None
                count, until = int(rest[0] or 0), at.end or rest[1]
                if until is None:
                    return None
        assert until is not None
        columns = ", ".join(map(self._database.dialect.quoted, self._options.columns)) or "*"
        query = self._select(columns, self._conditions(at.after, until))
        reader = self._database.session.read.format("jdbc").options(**self._database.spark_options)
        with self._database.telling("reading"):
            frame = reader.options(dbtable=f"({query}) detent_slice", fetchsize=FETCH_ROWS).load()
        behind = Position(until, at.end, at.bounded)
        return Slice(frame, msgspec.json.encode(behind), weight=max(1, count), rows=count)

    def at_end(self, position: bytes) -> bool:
        at = msgspec.json.decode(position, type=Position)
        return at.bounded and at.after == at.end

    def close(self) -> None:
        """Connections are closed as soon as they are not needed."""

    # Asking the database ---------------------------------------------------------------------------------------------

    def _look(self, transaction: Transaction) -> None:
        """Once: whether the table and its key can be read, and by what it is shared."""
        if self._is_number is not None:
            return
        self._is_number = transaction.column_type(self._select(self._key, "1 = 0")) in NUMBERS
        if self._shares > 1 and not self._is_number and not self._options.share_by:
            raise Refused(
                f"{self._name!r} has {self._shares} tasks, and its key {self._options.key_column} is no number to "
                "share rows by. Set share_by to an SQL expression that is one, or parallelism to 1."
            )
        if transaction.one(f"{self._select('1', f'{self._key} IS NULL')} {self._nth(0)}") is not None:
            raise Refused(f"{self._name!r}: {self._options.key_column} is null in some rows, which would never be read")

    def _resume(self, transaction: Transaction, position: bytes, checkpoint: int) -> None:
        try:
            at = msgspec.json.decode(position, type=Position)
        except msgspec.MsgspecError as error:
            raise Unservable(
                self._name, checkpoint, position, f"it is no position of a JDBC source ({error})"
            ) from error
        wanted = at.end if at.bounded else at.after
        if wanted is None:
            return
        condition = f"{self._key} >= {self._literal(wanted)}"
        if transaction.one(f"{self._select('1', condition)} {self._nth(0)}") is None:
            highest = self._highest(transaction, "1 = 1")
            has = f"the highest {self._options.key_column} in {self._options.table} is {highest} now" if highest else (
                f"{self._options.table} is empty now")  # fmt: skip
            raise Unservable(self._name, checkpoint, position, has)

    def _highest(self, transaction: Transaction, where: str) -> str | None:
        found = transaction.one(self._select(f"MAX({self._key})", where))
        return found[0] if found else None

    # SQL -------------------------------------------------------------------------------------------------------------

    def _select(self, what: str, where: str) -> str:
        return f"SELECT {what} FROM {self._options.table} WHERE {where}"

    def _nth(self, count: int) -> str:
        return self._database.dialect.nth(count)

    def _conditions(self, after: str | None = None, until: str | None = None) -> str:
        found = [f"({self._options.where})"] if self._options.where else []
        if after is not None:
            found.append(f"{self._key} > {self._literal(after)}")
        if until is not None:
            found.append(f"{self._key} <= {self._literal(until)}")
        if self._shares > 1:
            by, count = self._options.share_by or self._key, self._shares
            found.append(f"MOD(MOD({by}, {count}) + {count}, {count}) = {self._share}")
        return " AND ".join(found) or "1 = 1"

    def _literal(self, key: str) -> str:
        if self._is_number:
            if NUMBER.fullmatch(key) is None:
                raise Refused(f"{self._name!r}: {key!r} is no number, and {self._options.key_column} is one")
            return key
        return "'" + key.replace("'", "''") + "'"
