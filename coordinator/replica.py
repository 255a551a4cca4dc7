"""A shard as one process knows it: the newest bytes of every key, and the state decoded from them, in step.

Standing by, it follows the log. While its process leads, it takes over what that writes, and the state is ahead by what
is being written just now. One thread at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from coordinator.quarantine import Unreadable
from coordinator.state import State, entity_of, fold
from events.cluster import Cluster
from events.codec import Codec
from events.errors import Place, UnreadableKey, UnreadableRecord
from events.keys import Entity
from events.mirror import Mirror
from events.records import Event
from events.recovery import now_ms, recover
from events.table import Poison, Raw

LOG = logging.getLogger(__name__)
MIRROR_EVERY_S = 1.0
CHECK_S = 1.0
WAIT_MS = 20  # a new leader waits as long at most to know that it has read everything


class Replica:
    def __init__(self, cluster: Cluster, shard: int, codec: Codec, mirror: Mirror | None = None) -> None:
        """Replays the shard. What can't be read is kept in `unreadable` until it is set aside."""
        self.shard = shard
        self._codec, self._mirror = codec, mirror
        self._unmirrored: dict[bytes, bytes | None] = {}
        self._mirrored_at = time.monotonic()
        self.poison: list[Poison] = []
        recovered = recover(cluster, shard, codec, mirror, poison=self.poison.append, wait_ms=WAIT_MS)
        self._follower = recovered.follower
        self.table = recovered.follower.table
        self.replayed, self.replay_s = recovered.replayed, recovered.took_s
        self.unreadable: dict[bytes, Unreadable] = {}
        self.state = State(shard, shards=cluster.shards)
        self._take(self.table.values)
        self.heard_s = time.monotonic()  # when the log last moved

    @property
    def mirror_lag(self) -> int:
        return len(self._unmirrored)

    @property
    def mirror_failed(self) -> bool:
        return self._mirror is not None and self._mirror.failure is not None

    def close(self) -> None:
        self._follower.close()
        if self._mirror is not None:
            self._mirror.close()

    def advance(self, timeout_s: float) -> int:
        """Follow the log by the transactions that have ended since."""
        changed: dict[bytes, bytes | None] = {}
        for applied in self._follower.advance(timeout_s):
            changed |= applied.changed
        if changed:
            self.heard_s = time.monotonic()
            self._unmirrored |= changed
            self._take(changed)
        self._record_now_and_then()
        return len(changed)

    def check(self) -> None:
        """Raises UnreadablePartition when the log is gone: the client says nothing of that to who only waits for more.
        To be called now and then."""
        self._follower.reader.check(CHECK_S)

    def catch_up(self, end: int | None = None) -> int:
        """To the end of the log, as it is now or as it is given: after fencing. Returns how many records that took."""
        if self._follower.is_amid:
            self._follower.rewind()
        self._follower.touched.clear()
        count = self._follower.catch_up(end, remember=True)
        changed = {key: self.table.values.get(key) for key in self._follower.touched if key is not None}
        self._follower.touched.clear()
        self._unmirrored |= changed
        self._take(changed)
        return count

    def lead(self) -> None:
        """From now on what is written here is all that is new: it need not be read back."""
        self._follower.pause()

    def own(self, written: Mapping[bytes, bytes | None], next_offset: int) -> None:
        """A transaction of this process is on the log. The state has it already."""
        values = self.table.values
        for key, value in written.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        self.table.epoch, self.table.next_offset = self.state.epoch, next_offset
        self._unmirrored.update(written)
        self._record_now_and_then()

    def follow(self) -> None:
        """Lead no longer: read on from the last transaction that is known to be on the log."""
        self._follower.rewind()
        self.heard_s = time.monotonic()

    def set_aside(self) -> list[Unreadable]:
        return [self.unreadable[key] for key in sorted(self.unreadable)]

    def _record_now_and_then(self) -> None:
        if not self._unmirrored or time.monotonic() - self._mirrored_at < MIRROR_EVERY_S:
            return
        self._mirrored_at = time.monotonic()
        changed, self._unmirrored = self._unmirrored, {}
        if self._mirror is not None:
            self._mirror.record(changed, self.table, now_ms())

    def _take(self, keys: Iterable[bytes]) -> None:
        """Bring the state in step with the table for these keys."""
        for key in keys:
            try:
                entity = entity_of(key.decode())
            except (UnreadableKey, UnicodeDecodeError) as error:
                self.poison.append(Poison(Raw(-1, key, self.table.values.get(key)), str(error)))
                continue
            self.unreadable.pop(key, None)
            fold(self.state, entity, self._read(key, entity))

    def _read(self, key: bytes, entity: Entity) -> Event | None:
        value = self.table.values.get(key)
        if value is None:
            return None
        try:
            event = self._codec.decode(value, Event, Place("events", self.shard, -1))
            if event.entity != entity.text:
                raise UnreadableRecord(Place("events", self.shard, -1), f"it is about {event.entity}")
        except UnreadableRecord as error:
            LOG.error("unreadable record shard=%d entity=%s reason=%s", self.shard, entity.text, error)
            self.poison.append(Poison(Raw(-1, key, value), str(error)))
            self.unreadable[key] = Unreadable(entity, self._incarnation(value), error.reason)
            return None
        return event

    def _incarnation(self, value: bytes) -> int:
        try:
            return self._codec.peek(value).incarnation
        except ValueError:
            return 0
