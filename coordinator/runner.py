"""A shard in one process: it stands by, hot, until it is its turn; then it leads until it is fenced, is told to stop,
or hands over. A thread of its own. What goes wrong in it is said and tried again, with back-off; other shards go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient
from msgspec.structs import replace

from coordinator.core import may_lead
from coordinator.hearing import Hearing
from coordinator.membership import candidates, preferred, rank
from coordinator.metrics import Metrics
from coordinator.peers import Peers, monotonic_ms
from coordinator.reign import Reign, Rules
from coordinator.replica import Replica
from coordinator.state import State
from events.cluster import Cluster
from events.codec import Codec
from events.dead_letters import DeadLetters
from events.ends import decided_end
from events.errors import DetentError, Fenced, OutcomeUnknown
from events.mirror import Mirror
from events.records import Leader
from events.topics import TopicFacts
from events.writer import WarmWriter

LOG = logging.getLogger(__name__)
LOOK_S = 0.01  # how long a standby waits for the log before it looks at the leader again
TEND_S = 0.5
REBALANCE_S = 0.5
CHECK_EVERY_S = 10.0  # how often who stands by asks whether the log is still there
STABLE_MS = 3000  # how long a coordinator must have been heard before shards are handed over to it
DEAF_MS = 10_000  # how long a leader may be silent, at least, for who does not even hear itself
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class Timing:
    beat_ms: int = 100
    detection_ms: int = 500
    transaction_timeout_ms: int = 5000

    @property
    def turn_ms(self) -> int:
        """How much later each further candidate goes, so that they do not fence each other."""
        return max(50, 2 * self.beat_ms)


@dataclass(frozen=True)
class Surroundings:
    """What the shards of a process share."""

    cluster: Cluster
    codec: Codec
    name: str
    instance: str
    version: str
    address: str
    hearing: Hearing
    peers: Peers
    metrics: Metrics
    now_ms: Callable[[], int]
    rules: Rules
    timing: Timing
    state_dir: Path
    events_topic: TopicFacts
    admin: AdminClient
    handing_over: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class Turn:
    """Why it is this process's turn to lead, and when the leader before was last known to live."""

    reason: str
    silent_since_ms: int


class ShardRunner:
    def __init__(self, around: Surroundings, shard: int) -> None:
        self.shard, self._around = shard, around
        self.standing_by = False
        self.epoch = 0  # of the reign, while this process leads
        self.first_commit_ms = 0  # of that reign
        self.replica: Replica | None = None
        self._warm: WarmWriter | None = None
        self._dead_letters = DeadLetters(around.cluster, around.codec, around.name)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"shard-{shard}", daemon=True)
        self._tended = self._checked = 0.0
        self._suspected_ms = 0
        self._yield_until_ms = 0  # whoever fenced this one has not led yet: it is given the time to,
        self._yields_in = 0  # as long as this is the newest reign
        self._refused = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Hand over and end. Returns at once; `join` waits."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def would_take_over(self) -> bool:
        """At once, that is: it stands by, and has been there for long enough to know the others."""
        return self.standing_by and self._knows_the_others()

    def _knows_the_others(self) -> bool:
        return monotonic_ms() - self._around.peers.begun_ms >= 3 * self._around.timing.beat_ms

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                self._recover()
                turn = self._stand_by()
                if turn is not None:
                    self._lead(turn)
                pause_s = FIRST_PAUSE_S
                continue
            except Fenced as fenced:
                LOG.info("fenced, stands by again shard=%d: %s", self.shard, fenced)
                self._yield_until_ms = monotonic_ms() + self._around.timing.detection_ms
                continue
            except OutcomeUnknown as unknown:
                LOG.warning("reads the log again shard=%d: %s", self.shard, unknown)
                continue
            except DetentError as error:
                LOG.error("can't go on, tries again in %.1f s shard=%d: %s", pause_s, self.shard, error)
                self._forget()
            except Exception:  # a fault of ours: said, and begun anew from the log
                LOG.exception("stopped by a fault, begins anew in %.1f s shard=%d", pause_s, self.shard)
                self._forget()
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._forget()

    def _forget(self) -> None:
        self.standing_by = False
        for one in (self._warm, self.replica):
            if one is not None:
                one.close()
        self._warm = self.replica = None

    def _recover(self) -> None:
        """From the mirror and the log to a replica that follows."""
        around = self._around
        if self.replica is None:
            facts = around.events_topic
            path = around.state_dir / f"shard-{self.shard}"
            mirror = Mirror(path, facts.topic_id, self.shard, facts.delete_retention_ms)
            self.replica = Replica(around.cluster, self.shard, around.codec, mirror)
            around.metrics.replay_seconds.labels(str(self.shard)).set(self.replica.replay_s)
            around.metrics.watch_mirror(
                self.shard,
                lambda: self.replica.mirror_lag if self.replica else 0,
                lambda: bool(self.replica and self.replica.mirror_failed),
            )
            around.metrics.replayed.labels(str(self.shard)).set(self.replica.replayed)
            LOG.info("replayed shard=%d records=%d took_s=%.3f", self.shard, self.replica.replayed,
                     self.replica.replay_s)  # fmt: skip
        if self._warm is None:
            self._warm = WarmWriter(
                around.cluster,
                around.cluster.transactional_id(self.shard),
                transaction_timeout_ms=around.timing.transaction_timeout_ms,
            )
            self._warm.tend()

    # Standing by ---------------------------------------------------------------------------------------------------

    def _stand_by(self) -> Turn | None:
        """Until it is this one's turn; None when it is told to stop."""
        assert self.replica is not None
        self.standing_by = True
        self._suspected_ms = 0
        try:
            while not self._stopping.is_set():
                self.replica.advance(LOOK_S)
                turn = self._turn()
                if turn is not None:
                    return turn
                self._tend()
        finally:
            self.standing_by = False
        return None

    def _tend(self) -> None:
        now = time.monotonic()
        if now - self._tended > TEND_S and self._warm is not None:
            self._tended = now
            self._warm.tend()
        if now - self._checked > CHECK_EVERY_S and self.replica is not None:
            self._checked = now
            self.replica.check()

    def _turn(self) -> Turn | None:
        """Whether the shard wants a leader, and it is this one's turn. The wait of lower ranks begins with the
        suspicion, and ends when somebody else has led by then."""
        suspicion = self._suspicion()
        if suspicion is None:
            self._suspected_ms = 0
            return None
        now = monotonic_ms()
        assert self.replica is not None
        state = self.replica.state
        yields = now < self._yield_until_ms and _reign_of(state) <= self._yields_in
        if yields or not self._can_lead():
            return None
        self._suspected_ms = self._suspected_ms or now
        leader = state.leader.state if state.leader and isinstance(state.leader.state, Leader) else None
        others = [name for name, member in self._around.peers.members().items() if member.beat.logic >= state.logic]
        suspect = leader.coordinator if leader and state.leader and state.leader.to == "LEADING" else ""
        named = self._named()
        among = [name for name in others if name != suspect or name == self._around.name]
        place = 0 if named == self._around.name else rank(self._around.name, among, self.shard) + bool(named)
        return suspicion if now - self._suspected_ms >= place * self._around.timing.turn_ms else None

    def _named(self) -> str:
        """Whom the leader that resigned wants to be followed by; empty when none did, or it named nobody."""
        event = self.replica.state.leader if self.replica else None
        return event.state.successor if event and event.to == "VACANT" and isinstance(event.state, Leader) else ""

    def _can_lead(self) -> bool:
        assert self.replica is not None
        if may_lead(self.replica.state):
            return True
        if not self._refused:
            LOG.error(
                "does not lead shard=%d: the log was written by logic %d, this process has logic %d; upgrade it",
                self.shard, self.replica.state.logic, self.replica.state.writes,
            )  # fmt: skip
            self._refused = True
        return False

    def _suspicion(self) -> Turn | None:
        """Why the shard seems to have no leader; None when it has one."""
        assert self.replica is not None
        around, now = self._around, monotonic_ms()
        event = self.replica.state.leader
        if self._named() != around.name and not self._knows_the_others():
            return None
        if event is None or not isinstance(event.state, Leader):
            settled = now - around.peers.begun_ms > around.timing.detection_ms
            return Turn("the shard never had a leader", now) if settled else None
        leader = event.state
        resigned = Turn(f"{leader.coordinator} resigned", int(self.replica.heard_s * 1000))
        suspicion = resigned if event.to == "VACANT" else self._judged(leader.coordinator, leader.instance)
        if suspicion and (newer := around.peers.newer_leader(self.shard, event.epoch)):  # heard of before the log tells
            return self._judged(newer.beat.coordinator, newer.beat.instance)
        return suspicion

    def _judged(self, leader: str, instance: str) -> Turn | None:
        """Why that process seems not to lead any more; None when it does."""
        assert self.replica is not None
        around, now = self._around, monotonic_ms()
        known_ms = max(around.peers.begun_ms, int(self.replica.heard_s * 1000))
        heard_ms = max(known_ms, around.peers.last_heard_ms(leader, self.shard))
        if leader == around.name and instance != around.instance:
            return Turn("this coordinator led it before it was restarted", heard_ms)
        if gone_ms := around.peers.gone_ms(leader, instance):
            return Turn(f"the connection to {leader} has ended", gone_ms)
        if now - heard_ms > self._patience_ms(now):
            return Turn(f"{leader} has been silent for {now - heard_ms} ms", heard_ms)
        return None

    def _patience_ms(self, now: int) -> int:
        """How long a leader may be silent. Whoever is deaf knows less, and would take over from one that is well."""
        detection_ms = self._around.timing.detection_ms
        is_deaf = now - self._around.peers.heard_myself_ms > detection_ms
        return max(detection_ms, DEAF_MS) if is_deaf else detection_ms

    # Leading -------------------------------------------------------------------------------------------------------

    def _lead(self, turn: Turn) -> None:
        around, replica, warm = self._around, self.replica, self._warm
        assert replica is not None
        assert warm is not None
        decided = time.monotonic()
        self._yields_in = _reign_of(replica.state)
        self._warm = None
        writer = warm.take_over()
        fenced = time.monotonic()
        reign = Reign(around.cluster, around.codec, replica, writer, around.hearing, self._dead_letters,
                      around.now_ms, around.rules, around.metrics)  # fmt: skip
        try:
            replica.catch_up(decided_end(around.admin, around.cluster, "events", self.shard))
            if not self._can_lead():
                return
            caught_up = time.monotonic()
            phases = {
                "detect": max(0.0, decided - turn.silent_since_ms / 1000),
                "fence": fenced - decided,
                "replay": caught_up - fenced,
            }
            reign.begin(replace(self._leader(turn.reason), **{f"{p}_ms": round(s * 1000) for p, s in phases.items()}))
            phases["first_commit"] = time.monotonic() - caught_up
            self.first_commit_ms = round(phases["first_commit"] * 1000)
            self.epoch = self._yields_in = replica.state.epoch
            around.peers.beat_soon()
            around.metrics.took_over(self.shard, self.epoch, phases)
            LOG.info("leads shard=%d epoch=%d reason=%s %s", self.shard, self.epoch, turn.reason,
                     " ".join(f"{phase}_ms={seconds * 1000:.1f}" for phase, seconds in phases.items()))  # fmt: skip
            reign.open_inputs()
            self._reign(reign)
        finally:
            reign.close()
            around.metrics.leads(self.shard, self.epoch, False)
            self.epoch = 0
            replica.follow()

    def _reign(self, reign: Reign) -> None:
        around, rebalance_at = self._around, time.monotonic() + REBALANCE_S
        while not self._stopping.is_set():
            reign.turn()
            if time.monotonic() < rebalance_at:
                continue
            rebalance_at = time.monotonic() + REBALANCE_S
            if other := around.peers.newer_leader(self.shard, self.epoch):
                LOG.info("another leads, stands by again shard=%d epoch=%d leader=%s", self.shard, self.epoch,
                         other.beat.coordinator)  # fmt: skip
                return
            successor = self._successor()
            if successor and around.handing_over.acquire(blocking=False):
                try:
                    reign.resign(self._leader("the shards are spread anew", successor))
                    LOG.info("handed over shard=%d epoch=%d to=%s", self.shard, self.epoch, successor)
                finally:
                    around.handing_over.release()
                return
        others = [n for n in self._others() if n != around.name]
        successor = preferred(others, self.shard)
        reign.resign(self._leader("it is being stopped", successor))
        LOG.info("resigned shard=%d epoch=%d successor=%s", self.shard, self.epoch, successor or "-")

    def _others(self) -> list[str]:
        assert self.replica is not None
        return candidates(self._around.peers.members(), self.shard, self.replica.state.logic)

    def _successor(self) -> str:
        """Who should lead the shard instead, and has been there for a while; empty when all is as it should be."""
        members = self._around.peers.members()
        now = monotonic_ms()
        settled = {name: member for name, member in members.items() if now - member.since_ms > STABLE_MS}
        settled[self._around.name] = members[self._around.name]
        assert self.replica is not None
        best = preferred(candidates(settled, self.shard, self.replica.state.logic), self.shard)
        return best if best != self._around.name else ""

    def _leader(self, reason: str, successor: str = "") -> Leader:
        around = self._around
        return Leader(coordinator=around.name, address=around.address, version=around.version,
                      instance=around.instance, successor=successor, reason=reason)  # fmt: skip


def _reign_of(state: State) -> int:
    """The newest election that is known."""
    return state.leader.epoch if state.leader else 0
