"""The sink `lines`: rows as lines of text files in a directory, each exactly once, whoever is killed when.

Staged pieces lie in `<path>/.staging/<job>-<incarnation>/` under names that no other process and no other attempt has.
Publishing moves a piece to `<path>/`, by one rename, to a name that says job, incarnation, pipeline and checkpoint: a
piece is in one of the two places and never in both, so that however often it is tried and by however many at once, it
is published once. A mark in the staging tells of a checkpoint that is wholly published, even when somebody has taken
its files away since.

What is durable when: a piece's content, then its name in staging, then the acknowledgement that names it; its new name,
then the mark, then the word that it is published.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from events.errors import DetentError
from events.records import Staged
from workers.engine import MayPublish
from workers.files import file_name, make_directory, sync_directory, write_durably
from workers.happenings import Publish
from workers.ledger import Identity
from workers.plan import OptionsRefused, Step, options_of

KIND = "lines"
STAGING = ".staging"
MARKS_KEPT = 50  # of a pipeline: nobody asks for a checkpoint that so many others came after


class SinkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    # Faults, for tests and demonstrations.
    refuse_publish_times: int = 0
    refuse_publish_for_good: bool = False
    slow_publish_ms: int = 0  # before each piece
    staging_stuck_times: int = 0


class PublishRefused(DetentError):
    """It could not be published. `lasting`: it is not there, and can't be put there ever."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


class StagingBusy(DetentError):
    """Staging could not be removed now."""


class Faults:
    """Faults that happen so many times, counted in files: a fault that has happened stays so when the process dies."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def spend(self, name: str, times: int) -> bool:
        """Whether it happens once more. Fewer than 0 times is every time."""
        if times == 0:
            return False
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / name).open("ab") as file:
            if 0 <= times <= file.tell():
                return False
            file.write(b".")
            return True

    def forget(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


class Piece:
    """Output of one attempt that is being written. Nobody knows of it before `finish`."""

    def __init__(self, staging: Path, name: str) -> None:
        self.name, self.rows, self.size = name, 0, 0
        self._path = staging / name
        self._file: IO[bytes] = self._path.open("xb")

    def write(self, rows: Sequence[bytes]) -> None:
        self.rows += len(rows)
        self.size += self._file.write(b"".join(rows))

    def finish(self) -> None:
        """Its content and its name are durable when this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sync_directory(self._path.parent)

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class Lines:
    """One sink of one incarnation of a job. Safe for several threads and processes."""

    def __init__(self, step: Step, job: str, incarnation: int) -> None:
        """Raises OptionsRefused."""
        if step.kind != KIND:
            raise OptionsRefused(f"sink {step.name!r} is of kind {step.kind!r}; this engine has {KIND!r} only")
        self.options = options_of(step, SinkOptions)
        self.name = step.name
        self._job = f"{file_name(job)}-{incarnation}"
        self.path = Path(self.options.path)
        self.staging = self.path / STAGING / self._job
        self.faults = Faults(self.path / STAGING / f"{self._job}.faults")

    # Staging ---------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        make_directory(self.staging)

    def begin_piece(self, who: Identity) -> Piece:
        return Piece(self.staging, f"{who.pipeline}-{who.task}-{who.attempt}-{uuid.uuid4().hex[:16]}")

    def staged(self, piece: Piece) -> Staged:
        return Staged(name=piece.name, rows=piece.rows, size=piece.size, detail=self.name.encode())

    def remove(self) -> int:
        """How many pieces were still there. Raises StagingBusy."""
        if self.faults.spend("staging_stuck", self.options.staging_stuck_times):
            raise StagingBusy(f"staging of {self._job} is stuck, as sink {self.name!r} asks for (staging_stuck_times)")
        try:
            names = [path.name for path in self.staging.iterdir()]
            shutil.rmtree(self.staging)
            sync_directory(self.staging.parent)
        except FileNotFoundError:
            if self.staging.exists():  # somebody removes it at the same time, and is not done
                raise StagingBusy(f"{self.staging} is being removed by somebody else") from None
            names = []
        except OSError as error:
            raise StagingBusy(f"{self.staging} can't be removed: {error}") from error
        self.faults.forget()
        return sum(not name.startswith("published-") for name in names)

    # Publishing ------------------------------------------------------------------------------------------------------

    def publish(self, effect: Publish, may_publish: MayPublish) -> int:
        """The rows that are visible now, or have been since an earlier try. Raises PublishRefused."""
        pieces = [piece for piece in effect.staged if piece.detail == self.name.encode()]
        mark = self.staging / f"published-{effect.pipeline}-{effect.checkpoint}"
        rows = sum(piece.rows for piece in pieces)
        if not pieces or mark.exists():
            return rows
        self._refuse_as_asked()
        prefix = f"{self._job}-{effect.pipeline}-{effect.checkpoint}-"
        self._check(pieces, prefix)
        for piece in pieces:
            time.sleep(self.options.slow_publish_ms / 1000)
            self._move(self.staging / piece.name, self.path / f"{prefix}{piece.name}", may_publish)
        sync_directory(self.path)
        sync_directory(self.staging)
        write_durably(mark, json.dumps({"rows": rows}).encode(), uuid.uuid4().hex[:16])
        old = self.staging / f"published-{effect.pipeline}-{effect.checkpoint - MARKS_KEPT}"
        old.unlink(missing_ok=True)
        return rows

    def _check(self, pieces: Sequence[Staged], prefix: str) -> None:
        """Before anything becomes visible: all of it can."""
        gone = [
            piece.name
            for piece in pieces
            # Staging is looked at first: what somebody moves meanwhile is in the other place then.
            if not (self.staging / piece.name).exists() and not (self.path / f"{prefix}{piece.name}").exists()
        ]
        if gone:
            shown = ", ".join(gone[:3])
            raise PublishRefused(f"{len(gone)} staged pieces are gone from {self.staging}: {shown}", lasting=True)

    def _move(self, staged: Path, published: Path, may_publish: MayPublish) -> None:
        if published.exists():
            return
        if not may_publish():
            raise PublishRefused("the worker's lease is lost")
        try:
            staged.rename(published)
        except FileNotFoundError:
            if not published.exists():
                raise PublishRefused(f"{staged} has gone while it was published") from None

    def _refuse_as_asked(self) -> None:
        if self.options.refuse_publish_for_good:
            raise PublishRefused(f"sink {self.name!r} refuses for good (refuse_publish_for_good)", lasting=True)
        if self.faults.spend("publish_refused", self.options.refuse_publish_times):
            raise PublishRefused(f"sink {self.name!r} refuses for now (refuse_publish_times)")
