"""The mirror: the newest record of each key and the offset, on local disk, so that a restart replays only the tail.

A convenience, never a truth: whatever is doubtful about it, it is refused with a reason and rebuilt from the log; when
the disk fails under it, it stops mirroring, says so, and the shard goes on. It is written in batches by a thread of its
own. A batch is one atomic write of data and position, so a crash leaves an older mirror, not a wrong one.
"""

from __future__ import annotations

import logging
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

from events.codec import Codec
from events.errors import DetentError
from events.table import Table

LOG = logging.getLogger(__name__)
FORMAT = 1
ABOUT = b"\0about"  # sorts before every entity's key, and can be none: keys are printable
GATHER_S = 0.2  # how long changes gather before they are written as one batch
FLUSHED_BYTES = 1024 * 1024  # bounds what a restart after a crash has to read twice
CLOCKS_APART_MS = 60_000  # as far two clocks may be apart that nobody has set


class About(msgspec.Struct, frozen=True):
    """What the mirror is of, and how far it has come."""

    format: int
    topic_id: str
    shard: int
    next_offset: int
    epoch: int
    entities: int
    # When it was last known to be at the log's end: tombstones older than this can't have been missed.
    synced_at: int


@dataclass(eq=False)
class MirrorRefused(DetentError):
    """A mirror that is not there or must not be trusted."""

    path: Path
    reason: str
    missing: bool = False

    def message(self) -> str:
        return f"the mirror at {self.path} is not used: {self.reason}. It is rebuilt from the log."


@dataclass(eq=False)
class MirrorFailed(DetentError):
    """The disk failed under the mirror. Nothing is lost: the log has it all."""

    path: Path
    reason: str

    def message(self) -> str:
        return (
            f"the mirror at {self.path} can't be written and is behind from now on: {self.reason}. Nothing is lost; a "
            "restart will replay more of the log. Free some space and restart to mend it."
        )


class Mirror:
    """The mirror of one shard. `load` first; then `replace` or `record` from one thread."""

    def __init__(self, path: Path, topic_id: str, shard: int, delete_retention_ms: int) -> None:
        self.path = path
        self.failure: MirrorFailed | None = None
        self.mirrored_offset = 0
        self._topic_id, self._shard = topic_id, shard
        self._delete_retention_ms = delete_retention_ms
        self._db: Rdict | None = None
        self._about: About | None = None
        self._pending: dict[bytes, bytes | None] = {}
        self._pending_about: About | None = None
        self._wake = threading.Condition()
        self._closing = False
        self._unflushed = 0
        self._thread: threading.Thread | None = None

    def load(self, topic: str, codec: Codec, now_ms: int) -> Table:
        """The mirrored table. Raises MirrorRefused with the reason when there is none to trust."""
        if not (self.path / "CURRENT").exists():
            raise MirrorRefused(self.path, "there is none yet", missing=True)
        try:
            self._db = _open(self.path)
            values: dict[bytes, bytes] = dict(self._db.items())  # type: ignore[arg-type]
            about = msgspec.json.decode(values.pop(ABOUT, b""), type=About)
        except Exception as error:  # RocksDB's binding raises plain exceptions for any damage
            self._discard()
            raise MirrorRefused(self.path, f"it is damaged ({error})") from error
        if reason := self._doubt(about, len(values), now_ms):
            self._discard()
            raise MirrorRefused(self.path, reason)
        self._about, self.mirrored_offset = about, about.next_offset
        return Table(topic, self._shard, codec, values, about.epoch, about.next_offset)

    def _doubt(self, about: About, entities: int, now_ms: int) -> str | None:
        if about.format != FORMAT:
            return f"it is of format {about.format}, this version writes {FORMAT}"
        if (about.topic_id, about.shard) != (self._topic_id, self._shard):
            return f"it mirrors another topic ({about.topic_id}, shard {about.shard}): the topic was recreated"
        if about.entities != entities:
            return f"it is damaged ({entities} entities where {about.entities} were written)"
        if about.synced_at - now_ms > CLOCKS_APART_MS:
            return f"it is dated {about.synced_at - now_ms} ms ahead, so a clock was set and nobody knows how old it is"
        if self.is_outdated(now_ms, about):
            return (
                f"it is older than delete.retention.ms ({self._delete_retention_ms}), so it may have missed tombstones"
            )
        return None

    def is_outdated(self, now_ms: int, about: About | None = None) -> bool:
        """Whether tombstones may have gone between what was mirrored and now. To be asked again when the tail has been
        read: until then the broker may have removed more."""
        about = about or self._about
        return about is not None and now_ms - about.synced_at >= self._delete_retention_ms

    def replace(self, table: Table, now_ms: int) -> None:
        """Mirror this table and nothing else. A failure of the disk is kept in `failure`, not raised."""
        self._stop()
        self._discard()
        self.failure = None  # whatever was wrong with the one before
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._db = _open(self.path)
        except Exception as error:  # noqa: BLE001  RocksDB's binding raises plain exceptions
            return self._fail(error)
        self.record(dict(table.values), table, now_ms)
        return None

    def record(self, changed: dict[bytes, bytes | None] | dict[bytes, bytes], table: Table, now_ms: int) -> None:
        """Take over what changed up to the table's boundary; written soon, by the mirror's own thread. Call it with
        nothing changed now and then: it says that the table is at the log's end."""
        if self.failure is not None or self._db is None:
            return
        about = About(FORMAT, self._topic_id, self._shard, table.next_offset, table.epoch, len(table.values), now_ms)
        with self._wake:
            self._pending.update(changed)
            self._pending_about = about
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_on, name=f"mirror-{self._shard}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what is pending and close."""
        self._stop()
        self._close()

    def _close(self) -> None:
        database, self._db = self._db, None
        try:
            if database is not None:
                database.close()
        except Exception as error:  # noqa: BLE001  RocksDB's binding raises plain exceptions
            self._fail(error)

    def _stop(self) -> None:
        if self._thread is not None:
            with self._wake:
                self._closing = True
                self._wake.notify()
            self._thread.join()
            self._thread, self._closing = None, False

    def _write_on(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending_about is not None or self._closing)
                self._wake.wait_for(lambda: self._closing, GATHER_S)  # let a batch gather
                pending, about, closing = self._pending, self._pending_about, self._closing
                self._pending, self._pending_about = {}, None
            if about is not None and self.failure is None:
                self._write(pending, about)
            if closing or self.failure is not None:
                return

    def _write(self, pending: dict[bytes, bytes | None], about: About) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in pending.items():
            batch.delete(key) if value is None else batch.put(key, value)
        batch.put(ABOUT, msgspec.json.encode(about))
        try:
            if self._db is not None:
                self._unflushed += batch.size_in_bytes()
                self._db.write(batch)
                if self._unflushed > FLUSHED_BYTES:
                    self._db.flush()
                    self._unflushed = 0
                self._about, self.mirrored_offset = about, about.next_offset
        except Exception as error:  # noqa: BLE001  RocksDB's binding raises plain exceptions
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._pending.clear()
        if self.failure is None:  # once is enough
            self.failure = MirrorFailed(self.path, str(error))
            LOG.error("%s shard=%d", self.failure, self._shard)

    def _discard(self) -> None:
        self._close()
        self._about = None
        shutil.rmtree(self.path, ignore_errors=True)


def _open(path: Path) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.set_max_open_files(64)
    return Rdict(str(path), options)
