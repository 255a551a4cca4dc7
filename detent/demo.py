"""`detent demo`: the log at work, on the embedded broker. A leader writes a job's story and is killed with -9 in the
middle of a transaction; its successor fences it, replays, and tells the story from the log.

It checks what it shows and fails when something is not as it should be. It grows with the system.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import uuid
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from detent.options import Changes, ConfigFile, StateDir, settings_for
from detent.settings_sources import flag
from events.cluster import Cluster
from events.codec import Codec, SchemaBook
from events.embedded import EmbeddedBroker
from events.errors import DetentError, Place
from events.follower import Follower
from events.keys import Entity
from events.mirror import Mirror
from events.reader import PartitionReader, WholeTransactions
from events.records import Cause, Cursor, Event, EventState, Job, Leader, Pipeline, Position, ReadyMark, Task
from events.recovery import Recovered, now_ms, recover
from events.schema_topic import SchemaTopic
from events.table import Raw, Table
from events.topics import TopicFacts, ensure_topics
from events.writer import TransactionalWriter, outgoing_events

JOB = "orders"
TASKS = 3
SHARD = 0
BULK = 100_000


class Story:
    """A leader that says what a coordinator would: transitions of one job, each with its cause."""

    def __init__(self, epoch: int, sequence: int = 0) -> None:
        self.epoch, self.sequence = epoch, sequence

    def event(self, entity: Entity, transition: str, before: str, after: str, state: EventState, cause: Cause) -> Event:
        self.sequence += 1
        return Event(
            epoch=self.epoch,
            logic=1,
            incarnation=1 if entity.job else 0,
            attempt=1 if entity.kind in ("task", "ready") else 0,
            due_at=0,
            sequence=self.sequence,
            time=now_ms(),
            entity=entity.text,
            transition=transition,
            from_=before,
            to=after,
            job=entity.job,
            cause=cause,
            state=state,
        )

    def ended(self, *events: Event, consumed: int = 0) -> list[Event]:
        """A transaction: the events, then the cursor that is its boundary."""
        positions = (Position(topic="reports", partition=SHARD, offset=consumed),)
        cause = Cause(kind="STATE", note="end of transaction")
        cursor = self.event(Entity("cursor", (SHARD,)), "advanced", "", "", Cursor(positions=positions), cause)
        return [*events, cursor]

    def elected(self, coordinator: str, why: str) -> list[Event]:
        cause = Cause(kind="ELECTION", note=why)
        leader = Leader(coordinator=coordinator, reason=why)
        return self.ended(self.event(Entity("leader", (SHARD,)), "elected", "", "LEADING", leader, cause))

    def submitted(self) -> list[Event]:
        cause = Cause(kind="INPUT", topic="commands", partition=SHARD, offset=0)
        job = Job(pipelines=1, submitted_at=now_ms())
        return self.ended(
            self.event(Entity("job", (JOB,)), "submitted", "", "SCHEDULED", job, cause),
            self.event(Entity("pipeline", (JOB, 0)), "created", "", "SCHEDULED", Pipeline(tasks=TASKS), cause),
            *(self.task(t, "deployed", "CREATED", "DEPLOYING", cause) for t in range(TASKS)),
        )

    def task(self, number: int, transition: str, before: str, after: str, cause: Cause) -> Event:
        task = Task(worker=f"worker-{number % 2}", since=now_ms())
        return self.event(Entity("task", (JOB, 0, number)), transition, before, after, task, cause)

    def report(self, offset: int) -> Cause:
        return Cause(kind="INPUT", topic="reports", partition=SHARD, offset=offset)

    def running(self) -> list[Event]:
        events = [self.task(t, "running", "DEPLOYING", "RUNNING", self.report(t)) for t in range(TASKS)]
        return self.ended(*events, consumed=TASKS)

    def marked(self, number: int, offset: int) -> list[Event]:
        mark = ReadyMark(worker=f"worker-{number % 2}", position=b"end")
        ready = self.event(Entity("ready", (JOB, 0, number)), "marked", "", "READY", mark, self.report(offset))
        return self.ended(ready, consumed=offset + 1)


def transactional_id(cluster: Cluster) -> str:
    return cluster.transactional_id(SHARD)


def doomed_leader(cluster: Cluster, ready: Connection) -> None:
    """Leads, marks one task of three, and stands in the middle of a transaction when it is killed."""
    codec, story = Codec(), Story(epoch=1)
    with TransactionalWriter(cluster, transactional_id(cluster)) as writer:
        for events in (story.elected("coordinator-a", "first start"), story.submitted(), story.running()):
            writer.commit(outgoing_events(codec, SHARD, events))
        writer.commit(outgoing_events(codec, SHARD, story.marked(0, TASKS)))
    producer = cluster.producer(transactional_id=transactional_id(cluster), transaction_timeout_ms=60_000)
    producer.init_transactions(30)
    producer.begin_transaction()
    for record in outgoing_events(codec, SHARD, story.marked(1, TASKS + 1)):
        producer.produce(cluster.topic(record.topic), record.value, record.key, SHARD)
    producer.flush()
    ready.send(True)
    signal.pause()


def kill_in_the_middle(cluster: Cluster, console: Console) -> None:
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    leader = context.Process(target=doomed_leader, args=(cluster, send))
    leader.start()
    if not receive.poll(60) or leader.pid is None:
        leader.kill()
        raise DetentError("the demo's first leader did not get going within 60 s; is the machine very busy?")
    os.kill(leader.pid, signal.SIGKILL)
    leader.join()
    console.print(
        f"coordinator-a (pid {leader.pid}) leads, runs the job, and is [bold]killed with -9[/] in a transaction"
    )


def take_over(cluster: Cluster, codec: Codec, mirror: Mirror, console: Console) -> Recovered:
    """Fence, then measure the end, then replay, then say so on the log."""
    started = time.perf_counter()
    with TransactionalWriter(cluster, transactional_id(cluster)) as writer:
        fenced = time.perf_counter()
        recovered = recover(cluster, SHARD, codec, mirror)
        replayed = time.perf_counter()
        table = recovered.follower.table
        cursor = table.read(table.cursor_key)
        story = Story(epoch=table.epoch + 1, sequence=cursor.sequence if cursor else 0)
        writer.commit(outgoing_events(codec, SHARD, story.elected("coordinator-b", "coordinator-a fell silent")))
        first = time.perf_counter()
        console.print(
            f"coordinator-b takes over: fenced in {1000 * (fenced - started):.0f} ms, "
            f"replayed {recovered.replayed} events in {1000 * (replayed - fenced):.0f} ms, "
            f"first commit {1000 * (first - replayed):.0f} ms"
        )
        marks = [key.decode() for key in table.values if key.startswith(b"ready/")]
        if marks != [f"ready/{JOB}/0/0"]:
            raise DetentError(f"the new leader should know exactly the mark of task 0, but it knows {marks}")
        console.print("it knows the one committed ready-to-close mark; of the transaction left open nothing is seen")
        for number in (1, 2):
            writer.commit(outgoing_events(codec, SHARD, story.marked(number, TASKS + number)))
    return recovered


def tell(cluster: Cluster, codec: Codec, console: Console) -> None:
    """The story, from the log alone."""
    grid = Grid(title=f"what the log says of shard {SHARD}:", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("offset", "epoch", "entity", "transition", "from", "to", "cause"):
        grid.add_column(column, justify="right" if column in ("offset", "epoch") else "left", no_wrap=True)
    for record in read_all(cluster):
        event = codec.decode(record.value, Event, Place("events", SHARD, record.offset))
        cause = event.cause
        why = f"{cause.topic}/{cause.partition}@{cause.offset}" if cause.kind == "INPUT" else cause.note
        if not event.entity.startswith("cursor/"):
            grid.add_row(
                str(record.offset), str(event.epoch), event.entity, event.transition, event.from_, event.to, why
            )
    console.print(grid)


def read_all(cluster: Cluster) -> list[Raw]:
    TransactionalWriter(cluster, transactional_id(cluster)).close()  # fence, so that the end is settled
    found: list[Raw] = []
    cutter = WholeTransactions(Entity("cursor", (SHARD,)).key)
    with PartitionReader(cluster, "events", SHARD) as reader:
        end = reader.start_and_end()[1]
        while reader.position < end:
            found += [record for transaction in cutter.cut(reader.poll(0.1)) for record in transaction]
    return found


def follow_and_mirror(follower: Follower, mirror: Mirror, until: int) -> None:
    """What a standby does all day."""
    while follower.table.next_offset < until:
        for applied in follower.advance(0.1):
            mirror.record(applied.changed, follower.table, now_ms())


def restart_from_mirror(cluster: Cluster, codec: Codec, facts: TopicFacts, path: Path, console: Console) -> None:
    """A long log behind the same state: a full replay, then a restart from the mirror."""
    story, last = Story(epoch=3), -1
    with TransactionalWriter(cluster, transactional_id(cluster)) as writer:
        for start in range(0, BULK, 5000):
            events = [story.task(i % TASKS, "progressed", "RUNNING", "RUNNING", story.report(i)) for i in range(5000)]
            last = writer.commit(outgoing_events(codec, SHARD, story.ended(*events, consumed=start)))
    full = Follower(cluster, Table("events", SHARD, codec))
    started = time.perf_counter()
    count = full.catch_up(last + 1)
    took = time.perf_counter() - started
    full.close()
    console.print(f"a full replay of {count:,} events takes {1000 * took:.0f} ms ({count / took:,.0f} events/s)")
    mirror = Mirror(path, facts.topic_id, SHARD, facts.delete_retention_ms)
    behind = recover(cluster, SHARD, codec, mirror)
    mirror.close()
    behind.follower.close()
    again = Mirror(path, facts.topic_id, SHARD, facts.delete_retention_ms)
    restarted = recover(cluster, SHARD, codec, again)
    again.close()
    restarted.follower.close()
    if not restarted.from_mirror or restarted.follower.table.values != full.table.values:
        raise DetentError("the restart from the mirror does not give the state that the log gives")
    console.print(f"a restart from the mirror replays {restarted.replayed} events: {1000 * restarted.took_s:.0f} ms")


def run_demo(state_dir: StateDir = None, config: ConfigFile = None, changes: Changes = None) -> None:
    """See the log at work: a leader killed with -9, its successor, the story told from the log. Takes seconds.

    It always uses the embedded broker, whatever kafka.bootstrap_servers says.
    """
    settings = settings_for(config, changes, flag("--state-dir", "state_dir", state_dir)).settings
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 110  # a pipe has no width of its own
    with EmbeddedBroker(settings.state_dir) as broker, tempfile.TemporaryDirectory(prefix="detent-demo-") as scratch:
        console.print(f"a real Kafka broker runs at {broker.bootstrap_servers}, its data in {broker.directory}")
        cluster = Cluster(broker.bootstrap_servers, prefix=f"demo-{uuid.uuid4().hex[:6]}", shards=1)
        facts = ensure_topics(cluster)["events"]
        book = SchemaBook()
        topic = SchemaTopic(cluster, book)
        console.print(f"{topic.publish()} schemas are on the log itself: any later version can read it")
        codec = Codec(book, refresh=topic.refresh)
        kill_in_the_middle(cluster, console)
        mirror = Mirror(Path(scratch) / "mirror", facts.topic_id, SHARD, facts.delete_retention_ms)
        recovered = take_over(cluster, codec, mirror, console)
        records = read_all(cluster)
        follow_and_mirror(recovered.follower, mirror, records[-1].offset + 1)
        mirror.close()
        recovered.follower.close()
        ready = sorted(key for key in recovered.follower.table.values if key.startswith(b"ready/"))
        if len(ready) != TASKS:
            raise DetentError(f"all {TASKS} marks should be on the log, but there are {ready}")
        tell(cluster, codec, console)
        restart_from_mirror(cluster, codec, facts, Path(scratch) / "mirror", console)
        topic.close()
    console.print("[bold green]every committed transition is there, once; nothing uncommitted is[/]")
