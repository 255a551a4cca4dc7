"""The mirror: a restart replays only the tail, and whatever is doubtful about a mirror, it is rebuilt from the log."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from events.cluster import Cluster
from events.codec import Codec
from events.embedded import EmbeddedBroker
from events.mirror import Mirror, MirrorRefused
from events.recovery import recover
from events.table import Table
from events.topics import ensure_topics
from tests.logs import a_writer, own_cluster, replayed, settle, tasks, transaction, until

CODEC = Codec()
DAY = 86_400_000


def a_table(entities: int = 100, *, next_offset: int = 500) -> Table:
    values = {event.entity.encode(): CODEC.encode(event) for event in tasks(0, entities)}
    return Table("events", 0, CODEC, values, epoch=3, next_offset=next_offset)


def a_mirror(path: Path, *, topic_id: str = "id", shard: int = 0, delete_retention_ms: int = DAY) -> Mirror:
    return Mirror(path, topic_id, shard, delete_retention_ms)


def written(path: Path, table: Table, now_ms: int = 1000) -> None:
    mirror = a_mirror(path)
    mirror.replace(table, now_ms)
    mirror.close()
    assert mirror.failure is None


def test_what_is_mirrored_is_loaded(tmp_path: Path) -> None:
    table = a_table()
    written(tmp_path / "m", table)
    loaded = a_mirror(tmp_path / "m").load("events", CODEC, 2000)
    assert loaded == table


def test_changes_are_mirrored_and_tombstones_removed(tmp_path: Path) -> None:
    table = a_table()
    written(tmp_path / "m", table)
    mirror = a_mirror(tmp_path / "m")
    mirror.load("events", CODEC, 2000)
    gone, new = b"task/job-7/0/0", CODEC.encode(tasks(8, 9, rows=5)[0])
    del table.values[gone]
    table.values[b"task/job-8/0/0"] = new
    table.next_offset, table.epoch = 600, 4
    mirror.record({gone: None, b"task/job-8/0/0": new}, table, 3000)
    mirror.close()
    assert mirror.mirrored_offset == 600
    assert a_mirror(tmp_path / "m").load("events", CODEC, 4000) == table


def test_it_is_written_soon_without_being_closed(tmp_path: Path) -> None:
    mirror = a_mirror(tmp_path / "m")
    mirror.replace(a_table(), 1000)
    until(lambda: mirror.mirrored_offset == 500, "the mirror to be written")
    mirror.close()


@pytest.mark.parametrize(
    ("options", "now", "says"),
    [
        ({"topic_id": "other"}, 2000, "the topic was recreated"),
        ({"shard": 1}, 2000, "it mirrors another topic"),
        ({}, 1000 + DAY, r"older than delete.retention.ms \(86400000\)"),
        ({}, 1000 - 2 * 60_000, "a clock was set and nobody knows how old it is"),
        ({"delete_retention_ms": 50}, 1050, "may have missed tombstones"),
    ],
)
def test_a_doubtful_mirror_is_refused_and_removed(
    tmp_path: Path, options: dict[str, int | str], now: int, says: str
) -> None:
    written(tmp_path / "m", a_table(), now_ms=1000)
    with pytest.raises(MirrorRefused, match=says):
        a_mirror(tmp_path / "m", **options).load("events", CODEC, now)  # type: ignore[arg-type]
    with pytest.raises(MirrorRefused, match="there is none yet"):
        a_mirror(tmp_path / "m").load("events", CODEC, 2000)


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage", ["a flipped byte", "a missing file", "a cut file", "no manifest", "an older copy of a part"]
)
def test_a_damaged_mirror_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m"
    written(path, a_table(20_000))
    files = sorted(path.glob("*.sst")) or sorted(path.glob("*.log"))
    largest = max(files, key=lambda f: f.stat().st_size)
    if damage == "a flipped byte":
        flip(largest, 0.5)
    elif damage == "a missing file":
        largest.unlink()
    elif damage == "a cut file":
        largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    elif damage == "no manifest":
        (path / "CURRENT").write_text("nonsense")
    else:
        (path / "CURRENT").write_bytes(b"")
    with pytest.raises(MirrorRefused, match="damaged"):
        a_mirror(path).load("events", CODEC, 2000)


def test_a_full_disk_stops_the_mirror_and_nothing_else(tmp_path: Path) -> None:
    """On a real file system that is full: a tmpfs of 2 MB in a mount namespace of the test's own."""
    script = tmp_path / "fill.py"
    script.write_text(
        textwrap.dedent("""
        import logging, sys
        from pathlib import Path
        from tests.logs import until
        from tests.test_mirror import a_mirror, a_table, written
        logging.basicConfig(level=logging.ERROR)
        path = Path(sys.argv[1]) / "m"
        mirror = a_mirror(path)
        table = a_table(100)
        mirror.replace(table, 1000)
        until(lambda: mirror.mirrored_offset == 500, "the first write")
        big = a_table(60_000, next_offset=900)
        mirror.record(dict(big.values), big, 2000)
        until(lambda: mirror.failure is not None, "the disk to be full")
        assert "No space left" in str(mirror.failure), mirror.failure
        assert "Nothing is lost" in str(mirror.failure)
        mirror.record({}, big, 3000)   # harmless
        mirror.close()
        assert mirror.mirrored_offset == 500
        print("kept going")
        """)
    )
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m tmpfs {disk} && exec {sys.executable} {script} {disk}"
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow a mount namespace of one's own (unshare -rm)")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.stdout.strip() == "kept going", ran.stderr
    assert "can't be written and is behind" in ran.stderr


def test_killed_while_writing_it_leaves_an_older_mirror_not_a_wrong_one(tmp_path: Path) -> None:
    """kill -9 in the middle of writing, several times: what is loaded is the table at some boundary."""
    script = tmp_path / "write.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        from pathlib import Path
        from events import mirror as module
        from tests.test_mirror import CODEC, a_mirror, a_table
        from tests.logs import tasks
        module.GATHER_S = 0.001
        mirror = a_mirror(Path(sys.argv[1]) / "m")
        table = a_table(50, next_offset=0)
        mirror.replace(table, 1000)
        generation = 0
        while True:
            generation += 1
            changed = {e.entity.encode(): CODEC.encode(e) for e in tasks(0, 2000, rows=generation)}
            table.values.update(changed)
            table.next_offset = generation
            mirror.record(changed, table, 1000)
            if mirror.mirrored_offset > 3:
                print(mirror.mirrored_offset, flush=True)
        """)
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    for _ in range(3):
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        child = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, env=environment, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()  # it is in the middle of it
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        table = a_mirror(tmp_path / "m").load("events", CODEC, 1000)
        rows = {event.state.rows for key in table.values if (event := table.read(key))}  # type: ignore[union-attr]
        assert rows == {table.next_offset}
        assert len(table.values) == 2000


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Cluster:
    made = own_cluster(broker.bootstrap_servers)
    ensure_topics(made)
    return made


@pytest.mark.broker
def test_a_restart_replays_only_the_tail(cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts = ensure_topics(cluster)["events"]

    def mirror() -> Mirror:
        return Mirror(tmp_path / "m", facts.topic_id, 0, facts.delete_retention_ms)

    a_writer(cluster).commit(transaction(CODEC, tasks(0, 1000)))
    settle(cluster)
    first = mirror()
    with caplog.at_level(logging.INFO):
        recovered = recover(cluster, 0, CODEC, first)
    assert "there is none yet. It is rebuilt from the log" in caplog.text
    assert (recovered.from_mirror, recovered.replayed) == (False, 1001)
    first.close()
    recovered.follower.close()

    a_writer(cluster).commit(transaction(CODEC, tasks(0, 5, rows=1)))
    settle(cluster)
    second = mirror()
    recovered = recover(cluster, 0, CODEC, second)
    assert (recovered.from_mirror, recovered.replayed) == (True, 6)
    assert recovered.follower.table.values == replayed(cluster, CODEC).values
    second.close()
    recovered.follower.close()

    third = mirror()
    recovered = recover(cluster, 0, CODEC, third)  # the tail of the second restart was mirrored, too
    assert (recovered.from_mirror, recovered.replayed) == (True, 0)
    third.close()
    recovered.follower.close()


@pytest.mark.broker
@pytest.mark.parametrize("doubt", ["recreated", "ahead", "outdated", "outdated on arrival"])
def test_a_restart_rebuilds_a_mirror_in_doubt(
    cluster: Cluster, tmp_path: Path, doubt: str, caplog: pytest.LogCaptureFixture
) -> None:
    facts = ensure_topics(cluster)["events"]
    a_writer(cluster).commit(transaction(CODEC, tasks(0, 10)))
    settle(cluster)
    wrong = a_table(5, next_offset=10_000 if doubt == "ahead" else 0)
    mirror = Mirror(tmp_path / "m", "another" if doubt == "recreated" else facts.topic_id, 0, DAY)
    mirror.replace(wrong, 1000)
    mirror.close()
    clock = iter(
        {"outdated": [1000 + DAY] * 9, "outdated on arrival": [1000] + [1000 + DAY] * 9}.get(doubt, [1000] * 9)
    )
    again = Mirror(tmp_path / "m", facts.topic_id, 0, DAY)
    with caplog.at_level(logging.WARNING):
        recovered = recover(cluster, 0, CODEC, again, clock=lambda: next(clock))
    assert not recovered.from_mirror
    says = {"recreated": "the topic was recreated", "ahead": "ahead of the log", "outdated": "missed tombstones"}
    assert says.get(doubt, "grew too old while its tail was read") in caplog.text
    assert recovered.follower.table.values == replayed(cluster, CODEC).values
    recovered.follower.close()
    again.close()
    healed = Mirror(tmp_path / "m", facts.topic_id, 0, 10**18)
    assert healed.load("events", CODEC, 1000 + DAY).values == recovered.follower.table.values
    healed.close()
