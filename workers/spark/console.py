"""The sink `console`: the first rows of each committed piece on the worker's stdout, for people who try things out.

The text travels on the log with the piece, so that whichever worker publishes can show it. After a crash in publishing
it may be shown again: nothing is remembered of a console.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workers.engine import MayPublish
from workers.ledger import Identity
from workers.plan import Step, options_of
from workers.spark.api import Commit, Context, Piece, Refused, piece_name
from workers.spark.options import ConsoleOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MOST_BYTES = 8_000  # of text on the log


class Console:
    def __init__(self, context: Context, step: Step, job: str, incarnation: int) -> None:  # noqa: ARG002  as all
        self._options = options_of(step, ConsoleOptions)
        self._name = step.name

    def prepare(self, *, fresh: bool) -> None:
        """There is nothing to prepare."""

    def check(self, schema: StructType) -> None:
        """All can be shown."""

    def stage(self, frame: DataFrame, who: Identity, rows: int) -> Sequence[Piece]:  # noqa: ARG002  as all
        from pyspark.sql import functions as f

        shown = frame.limit(self._options.limit).select(f.to_json(f.struct("*")).alias("row")).collect()
        text = "\n".join(row.row for row in shown).encode()[:MOST_BYTES]
        count = len(shown) if len(shown) < self._options.limit else frame.count()
        return [Piece(piece_name(who), count, len(text), text)] if count else []

    def discard(self, pieces: Sequence[Piece]) -> None:
        """Nothing is kept anywhere."""

    def publish(self, commit: Commit, may_publish: MayPublish) -> int:
        if commit.pieces and not may_publish():
            raise Refused("the worker's lease is lost", lasting=False)
        for piece in commit.pieces:
            head = f"-- {commit.job} {self._name} checkpoint {commit.checkpoint}: {piece.rows} rows\n"
            sys.stdout.write(f"{head}{piece.detail.decode(errors='replace')}\n")
        sys.stdout.flush()
        return commit.rows

    def remove(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held."""
