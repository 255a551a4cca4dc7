"""The ledger on disk: the entries under their keys, and how far the worker has followed its orders, in one write.

It decides nothing. What it is given is durable when `write` returns; when the disk fails, it raises and takes nothing
more. A ledger that is there is whole: it is made under another name and renamed. Whatever is doubtful about it is an
error that says what to do, never a guess: a worker that forgets an order it has followed may follow it twice.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec
from rocksdict import DBRecoveryMode, Options, Rdict, WriteBatch, WriteOptions

from events.errors import DetentError
from workers.files import make_directory, sync_directory
from workers.ledger import Change, Drop, Entry, JobKey, Key, Ledger, Put, TaskKey, apply

LOG = logging.getLogger(__name__)
FORMAT = 1
ABOUT = b"\0about"  # sorts before every entry's key, and can be none: those are printable
BUFFER_BYTES = 4 * 1024 * 1024  # bounds what a restart after a crash has to read
ENTRY: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


class About(msgspec.Struct, frozen=True):
    """Whose ledger it is, and how far it has come."""

    format: int
    worker: str
    topic_id: str  # of the orders
    partition: int
    position: int  # the next order to follow
    entries: int


@dataclass(eq=False)
class LedgerDamaged(DetentError):
    """A ledger that can't be trusted."""

    path: Path
    reason: str

    def message(self) -> str:
        return (
            f"the worker's ledger at {self.path} is damaged: {self.reason}. Move that directory away and start again. "
            "The worker then begins with an empty ledger, as after the loss of its disk: it follows the orders given "
            "from then on, and the coordinator starts elsewhere, or anew, what it ran. Nothing published is lost."
        )


@dataclass(eq=False)
class LedgerForeign(DetentError):
    """A ledger of another worker, or of orders that are no more."""

    path: Path
    reason: str

    def message(self) -> str:
        return (
            f"the worker's ledger at {self.path} is not of these orders: {self.reason}. Correct the setting that "
            "points to it (worker.id, worker.state_dir, kafka.*). If the topics were made anew on purpose, move that "
            "directory away: the worker then begins with an empty ledger and the orders given from then on."
        )


@dataclass(eq=False)
class LedgerFailed(DetentError):
    """The disk did not take a write. What it was about has not happened as far as anybody else knows."""

    path: Path
    reason: str

    def message(self) -> str:
        return (
            f"the worker's ledger at {self.path} can't be written: {self.reason}. The worker stops its tasks and ends, "
            "since it may do nothing that it can't remember. Free some space, or mend the disk, and start it again."
        )


class LedgerStore:
    """For one thread."""

    def __init__(self, path: Path, db: Rdict, about: About, keys: set[bytes]) -> None:
        """Made by `create` and `load`."""
        self.path = path
        self.about = about
        self._db, self._keys = db, keys
        self._synced = WriteOptions()
        self._synced.sync = True
        self._failure: LedgerFailed | None = None

    @property
    def position(self) -> int:
        return self.about.position

    @property
    def entries(self) -> int:
        return len(self._keys)

    def write(self, changes: Iterable[Change], position: int) -> None:
        """The hard ones of these changes and the position, together; durable when this returns. Where there is only a
        position, it need not be: those orders led to nothing. Raises LedgerFailed."""
        batch, keys = WriteBatch(raw_mode=True), self._keys
        hard = False
        for change in changes:
            if isinstance(change, Put):
                key = _bytes(change.entry.key)
                batch.put(key, msgspec.msgpack.encode(change.entry))
                keys.add(key)
                hard = True
            elif isinstance(change, Drop):
                key = _bytes(change.key)
                batch.delete(key)
                keys.discard(key)
                hard = True
        if not hard and position == self.about.position:
            return
        self.about = msgspec.structs.replace(self.about, position=position, entries=len(keys))
        batch.put(ABOUT, msgspec.msgpack.encode(self.about))
        self._write(batch, hard)

    def _write(self, batch: WriteBatch, synced: bool) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            self._db.write(batch, self._synced if synced else None)
        except Exception as error:  # RocksDB's binding raises plain exceptions
            self._failure = LedgerFailed(self.path, str(error))
            raise self._failure from error

    def close(self) -> None:
        try:
            self._db.close()
        except Exception as error:
            if self._failure is None:
                raise LedgerFailed(self.path, str(error)) from error
            LOG.debug("the ledger could not be closed either: %s", error)


def create(path: Path, worker: str, topic_id: str, partition: int, position: int) -> LedgerStore:
    """An empty ledger that begins at a position. It must be made before anybody hears of the worker."""
    about = About(FORMAT, worker, topic_id, partition, position, 0)
    part = path.with_name(f"{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        make_directory(path.parent)
        store = LedgerStore(path, _open(part, create=True), about, set())
        batch = WriteBatch(raw_mode=True)
        batch.put(ABOUT, msgspec.msgpack.encode(about))
        store._write(batch, synced=True)
        store.close()
        part.rename(path)
        sync_directory(path.parent)
    except LedgerFailed:
        raise
    except Exception as error:  # RocksDB's binding raises plain exceptions
        raise LedgerFailed(path, str(error)) from error
    return load(path)[0]


def load(path: Path) -> tuple[LedgerStore, Ledger]:
    """The ledger as the process before left it. Raises LedgerDamaged."""
    try:
        db = _open(path, create=False)
    except Exception as error:  # RocksDB's binding raises plain exceptions for any damage
        raise LedgerDamaged(path, str(error)) from error
    try:
        values: dict[bytes, bytes] = dict(db.items())  # type: ignore[arg-type]
        about = _about(path, values)
        ledger = Ledger()
        apply(ledger, [Put(_entry(path, key, value)) for key, value in values.items()])
    except LedgerDamaged:
        db.close()
        raise
    except Exception as error:  # as above
        db.close()
        raise LedgerDamaged(path, str(error)) from error
    return LedgerStore(path, db, about, set(values)), ledger


def check(store: LedgerStore, worker: str, topic_id: str, partition: int) -> None:
    """Raises LedgerForeign when the position is one of other orders."""
    about = store.about
    if about.worker != worker:
        raise LedgerForeign(store.path, f"it is worker {about.worker}'s, this one is {worker}")
    if about.topic_id != topic_id:
        raise LedgerForeign(store.path, f"the orders topic was {about.topic_id} and is {topic_id}: it was made anew")
    if about.partition != partition:
        raise LedgerForeign(store.path, f"its orders were on partition {about.partition} and are on {partition}")


def _about(path: Path, values: dict[bytes, bytes]) -> About:
    """Takes it out of the values."""
    try:
        about = msgspec.msgpack.decode(values.pop(ABOUT), type=About)
    except (KeyError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise LedgerDamaged(path, f"it does not say what it is ({error!r})") from error
    if about.format != FORMAT:
        raise LedgerDamaged(path, f"it is of format {about.format}, and this version of Detent reads {FORMAT}")
    if about.entries != len(values):
        raise LedgerDamaged(path, f"it has {len(values)} entries where {about.entries} were written")
    return about


def _entry(path: Path, key: bytes, value: bytes) -> Entry:
    try:
        entry: Entry = ENTRY.decode(value)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise LedgerDamaged(path, f"the entry {key!r} can't be read: {error}") from error
    if _bytes(entry.key) != key:
        raise LedgerDamaged(path, f"the entry {key!r} is about {_bytes(entry.key)!r}")
    return entry


def _bytes(key: Key) -> bytes:
    kind = "task" if isinstance(key, TaskKey) else "removal" if isinstance(key, JobKey) else "publication"
    job, *numbers = msgspec.structs.astuple(key)
    return "/".join((kind, quote(job, safe=""), *map(str, numbers))).encode()


def _open(path: Path, *, create: bool) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_paranoid_checks(True)
    # Half a record at the end is a write that was never answered; damage anywhere else is damage.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_size(BUFFER_BYTES)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(64)
    return Rdict(str(path), options)
