"""The coordinators and what each knows of the others: every process beats, one small record whatever it leads, and
listens to the beats of the others. Liveness is counted by this process's own monotonic clock.

Whoever does not hear its own beats hears nobody's: it is deaf (cut off, or just healed and not caught up), and others'
silence means little to it.

Death is faster than silence: a connection is held to every other's health address (coordinator/peer_watch.py); where it
ends and can't be made again, that process is gone. It is a hint only. Fencing decides.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

from coordinator.membership import Member
from events.cluster import Cluster
from events.codec import Codec
from events.errors import BrokerUnreachable, DetentError, Place, UnreadableRecord
from events.inputs import END, InputsReader
from events.reader import offset_of
from events.records import Beat

LOG = logging.getLogger(__name__)
TOPIC = "coordinators"
LATE_BEATS = 5  # for as long a beat may still come of a process that is gone
FORGET_BEATS = 20  # a coordinator that has not been heard for so many beats is no member any more


class SameIdTwice(DetentError):
    """Two processes say that they are the same coordinator."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Peers:
    """A thread of its own beats and listens; any thread may ask."""

    def __init__(self, cluster: Cluster, codec: Codec, me: Callable[[], Beat], beat_ms: int) -> None:
        """`me` says how things stand here, for the next beat."""
        self._codec, self._me, self._beat_ms = codec, me, beat_ms
        self._topic = cluster.topic(TOPIC)
        self._producer = cluster.producer(linger_ms=0, message_timeout_ms=5000)
        self._reader = InputsReader(cluster, {(TOPIC, 0): END})
        self._lock = threading.Lock()
        self._members: dict[str, Member] = {}
        self._led: dict[tuple[str, int], int] = {}  # when who last said that it leads which shard
        self._gone: dict[str, int] = {}  # instances whose connection has ended, and when
        self._stopping, self._soon = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)
        self.begun_ms = monotonic_ms()
        self.heard_myself_ms = 0  # beats come back in their order: what others said before has been heard, too
        self.failed: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._beat()
        self._producer.flush(1.0)
        self._reader.close()

    def beat_soon(self) -> None:
        """Something has changed that the others should hear of without delay."""
        self._soon.set()

    def members(self) -> dict[str, Member]:
        """Everyone who lives, this process among them."""
        now = monotonic_ms()
        mine = self._me()
        with self._lock:
            found = {n: m for n, m in self._members.items() if now - m.heard_ms < FORGET_BEATS * self._beat_ms}
            found = {n: m for n, m in found.items() if m.beat.instance not in self._gone}
        found[mine.coordinator] = Member(mine, self.begun_ms, now)
        return found

    def last_heard_ms(self, coordinator: str, shard: int) -> int:
        """When a coordinator last said that it leads the shard; 0 for never."""
        return self._led.get((coordinator, shard), 0)

    def gone_ms(self, coordinator: str, instance: str) -> int:
        """When the connection to that process ended, or another one with its id was first heard; 0 while it lives."""
        with self._lock:
            member = self._members.get(coordinator)
            other = member.since_ms if member is not None and member.beat.instance != instance else 0
            return self._gone.get(instance, other)

    def newer_leader(self, shard: int, epoch: int) -> Member | None:
        """Who said last that it leads the shard in a later reign; None for nobody."""
        with self._lock:
            for member in self._members.values():
                if any(led.shard == shard and led.epoch > epoch for led in member.beat.shards):
                    return member
        return None

    def addresses(self) -> dict[str, str]:
        """Where the others can be reached, by instance."""
        with self._lock:
            found = {m.beat.instance: m.beat.address for m in self._members.values() if m.beat.address}
            return {instance: address for instance, address in found.items() if instance not in self._gone}

    def lose(self, instance: str) -> None:
        with self._lock:
            self._gone[instance] = monotonic_ms()

    def _run(self) -> None:
        try:
            due_ms = 0
            while not self._stopping.is_set():
                now = monotonic_ms()
                if now >= due_ms or self._soon.is_set():
                    self._soon.clear()
                    self._beat()
                    due_ms = now + self._beat_ms
                wait_s = max(0.001, min(0.02, (due_ms - monotonic_ms()) / 1000))
                for _, _, message in self._reader.poll(wait_s, 1000):
                    self._take(message)
        except Exception as error:  # told to the process, which ends
            LOG.exception("the other coordinators can't be heard any more")
            self.failed = error

    def _beat(self) -> None:
        beat = self._me()
        try:
            self._producer.produce(self._topic, self._codec.encode(beat), beat.coordinator.encode(), 0)
        except BufferError:  # a broker is away: beats are worth nothing later
            LOG.debug("a beat is left out: the client's queue is full")
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            LOG.warning("a beat could not be sent: %s (%s)", error.str(), error.name())
        self._producer.poll(0)

    def _take(self, message: Message) -> None:
        try:
            beat = self._codec.decode(message.value(), Beat, Place(TOPIC, 0, offset_of(message)))
        except (UnreadableRecord, BrokerUnreachable) as error:  # its schema may be unknown, and out of reach
            LOG.warning("a beat can't be read: %s", error)
            return
        mine = self._me()
        if beat.coordinator == mine.coordinator:
            self._meet_myself(beat, mine)
            return
        now = monotonic_ms()
        with self._lock:
            known = self._members.get(beat.coordinator)
            same = known is not None and known.beat.instance == beat.instance
            since = known.since_ms if known is not None and same else now
            self._members[beat.coordinator] = Member(beat, since, now)
            # What a process sent right before it died arrives after its death was noticed. One that lives beats on.
            if now - self._gone.get(beat.instance, now) > LATE_BEATS * self._beat_ms:
                del self._gone[beat.instance]
            for led in beat.shards:
                self._led[beat.coordinator, led.shard] = now

    def _meet_myself(self, beat: Beat, mine: Beat) -> None:
        """The one that came later goes: the other one works."""
        if beat.instance == mine.instance:
            self.heard_myself_ms = monotonic_ms()
        elif (beat.started_at, beat.instance) < (mine.started_at, mine.instance):
            raise SameIdTwice(
                f"another process at {beat.address or 'an unknown address'} is coordinator {mine.coordinator} already "
                f"(instance {beat.instance}). Give this one another id: --set coordinator.id=…, or leave it empty."
            )
