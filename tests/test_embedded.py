"""The embedded broker: shared, gone with its last user, back on the same data; and clear about what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from events import embedded
from events.broker_launch import BrokerFailed, Launch
from events.broker_settings import HOST, Ports, choose_ports
from events.broker_state import BrokerStatus, StateUnusable, broker_directory, is_used, read_record
from events.embedded import BrokerDiffers, EmbeddedBroker, answers
from events.embedded_guard import process_identity
from events.java import CRASHED, Java, NoJava

pytestmark = pytest.mark.broker

LIMIT_S = 60.0
USER = """
import sys
from events.embedded import EmbeddedBroker
with EmbeddedBroker(sys.argv[1]) as broker:
    print(broker.status.pid, flush=True)
    sys.stdin.read()
"""


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


@dataclass
class User:
    """Another process that uses the broker until its stdin closes, or until it is killed."""

    process: subprocess.Popen[str]

    def broker_pid(self) -> int:
        """Known once the broker answers it."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    embedded.stop(tmp_path / "state")


@pytest.fixture
def new_user(state_dir: Path) -> Iterator[Callable[[], User]]:
    with contextlib.ExitStack() as users:

        def start() -> User:
            command = [sys.executable, "-c", USER, str(state_dir)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            users.enter_context(process)
            users.callback(process.kill)
            return User(process)

        yield start


def is_gone(broker: BrokerStatus) -> bool:
    return not broker.is_alive() and not broker.is_guarded()


def running(state_dir: Path) -> BrokerStatus:
    found = embedded.status(state_dir)
    assert found is not None
    return found


def create_topic(bootstrap_servers: str, topic: str) -> None:
    with AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0}) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout=LIMIT_S)


def write_transaction(bootstrap_servers: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(LIMIT_S)


def read_all(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "g", "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read: list[bytes] = []
        deadline = time.monotonic() + LIMIT_S
        while len(read) < count and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                read.append(message.value() or b"")
        return read
    finally:
        consumer.close()


def test_it_answers(broker: EmbeddedBroker) -> None:
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        metadata = admin.list_topics(timeout=10)
    assert list(metadata.brokers) == [1]
    assert metadata.cluster_id == broker.status.cluster_id
    assert broker.bootstrap_servers == f"{HOST}:{broker.status.port}"


def test_a_user_that_joins_gets_the_same_broker(broker: EmbeddedBroker) -> None:
    with EmbeddedBroker(broker.directory.parent) as joined:
        assert joined.status == broker.status
    assert answers(broker.status)


def test_it_is_shared_by_processes_and_ends_with_the_last(state_dir: Path, new_user: Callable[[], User]) -> None:
    first, second = new_user(), new_user()  # at the same time: only one of them may start a broker
    assert first.broker_pid() == second.broker_pid() == running(state_dir).pid
    broker = running(state_dir)
    first.kill()
    # What the guard goes by. It will find the same, however often it looks.
    assert is_used(broker_directory(state_dir))
    assert answers(broker)
    second.kill()
    assert not is_used(broker_directory(state_dir))
    eventually(lambda: is_gone(broker))
    assert embedded.status(state_dir) is None


def test_it_ends_when_its_only_user_leaves_or_is_killed(state_dir: Path, new_user: Callable[[], User]) -> None:
    with EmbeddedBroker(state_dir) as left:
        broker = left.status
    eventually(lambda: is_gone(broker))

    user = new_user()
    assert user.broker_pid() != broker.pid
    broker = running(state_dir)
    user.kill()
    eventually(lambda: is_gone(broker))


def test_it_ends_when_its_starter_is_killed_while_starting(state_dir: Path, new_user: Callable[[], User]) -> None:
    starter = new_user()
    eventually(lambda: read_record(broker_directory(state_dir)))
    broker = running(state_dir)
    starter.kill()
    eventually(lambda: is_gone(broker))
    with EmbeddedBroker(state_dir) as after:
        assert after.status.pid != broker.pid


def test_a_user_that_comes_while_it_ends_gets_a_new_one(state_dir: Path) -> None:
    with EmbeddedBroker(state_dir) as broker:
        before = broker.status
    for _ in range(3):  # each time a little further into its end
        with broker:
            assert answers(broker.status)
            last = broker.status
        eventually(lambda: (record := read_record(broker.directory)) is None or record.stopping)
    assert last.pid != before.pid


def test_it_comes_back_on_the_same_data_and_port(state_dir: Path) -> None:
    with EmbeddedBroker(state_dir) as broker:
        create_topic(broker.bootstrap_servers, "kept")
        write_transaction(broker.bootstrap_servers, "kept", [b"one", b"two"])
        before = broker.status
    assert embedded.stop(state_dir)
    assert is_gone(before)
    with EmbeddedBroker(state_dir) as broker:
        after = broker.status
        assert (after.bootstrap_servers, after.cluster_id) == (before.bootstrap_servers, before.cluster_id)
        assert read_all(broker.bootstrap_servers, "kept", 2) == [b"one", b"two"]


def test_what_was_committed_outlives_a_kill(state_dir: Path) -> None:
    """Kafka acknowledges a commit before it has written its markers: a kill may come in between."""
    written: list[bytes] = []
    with EmbeddedBroker(state_dir) as broker:
        create_topic(broker.bootstrap_servers, "kept")
        for value in (b"one", b"two", b"three"):
            write_transaction(broker.bootstrap_servers, "kept", [value])
            before = broker.status
            broker.kill()
            assert is_gone(before)
            written.append(value)
            broker.start()
            assert broker.status.pid != before.pid
            assert broker.bootstrap_servers == before.bootstrap_servers
            assert read_all(broker.bootstrap_servers, "kept", len(written)) == written


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the JVM with its guard")
def test_it_ends_with_its_guard(state_dir: Path) -> None:
    with EmbeddedBroker(state_dir) as broker:
        before = broker.status
        os.kill(before.guard_pid, signal.SIGKILL)
        eventually(lambda: is_gone(before))
        assert read_record(broker.directory) == before  # nobody was left to remove it
        assert embedded.status(state_dir) is None
        assert not embedded.stop(state_dir)
        broker.start()
        assert broker.status.pid != before.pid
        assert broker.status.port == before.port


def test_only_the_recorded_process_is_ended_as_an_orphan(state_dir: Path) -> None:
    """On systems where the JVM outlives its guard. A pid that was given to another process is left alone."""
    with EmbeddedBroker(state_dir) as broker:
        record = broker.status
    embedded.stop(state_dir)

    with subprocess.Popen(["sleep", "600"]) as sleeper:
        identity = process_identity(sleeper.pid)
        assert identity is not None
        for recorded in ("another time", identity):
            orphan = msgspec.structs.replace(record, pid=sleeper.pid, identity=recorded)
            (broker.directory / "broker.json").write_bytes(msgspec.json.encode(orphan))
            assert (embedded.status(state_dir) is None) == (recorded != identity)
            assert embedded.stop(state_dir) == (recorded == identity)
            assert (process_identity(sleeper.pid) is None) == (recorded == identity)
    assert sleeper.returncode == -signal.SIGTERM


def test_other_settings_than_the_running_ones_are_refused(state_dir: Path) -> None:
    with EmbeddedBroker(state_dir, overrides={"num.io.threads": "3"}) as broker:
        with pytest.raises(BrokerDiffers) as caught:
            EmbeddedBroker(state_dir, overrides={"num.io.threads": "5", "num.network.threads": "1"}).start()
        assert caught.value.differences == (("num.io.threads", "5", "3"), ("num.network.threads", "1", None))
        assert "num.io.threads was asked to be 5 and is 3" in str(caught.value)
        with pytest.raises(BrokerDiffers, match="the port was asked to be 1 and is"):
            EmbeddedBroker(state_dir, port=1).start()
        with pytest.raises(BrokerDiffers):
            EmbeddedBroker(state_dir, overrides={}).start()
        for overrides in ({"num.io.threads": "3"}, None):
            with EmbeddedBroker(state_dir, overrides=overrides) as joined:
                assert joined.status == broker.status
        assert "num.io.threads=3\n" in (broker.directory / "server.properties").read_text()


def test_a_broker_that_dies_at_its_start_is_explained(state_dir: Path) -> None:
    broker = EmbeddedBroker(state_dir, overrides={"num.io.threads": "many"})
    with pytest.raises(BrokerFailed, match=r"Invalid value many for configuration num\.io\.threads") as caught:
        broker.start()
    assert str(broker.directory / "broker.log") in str(caught.value)
    eventually(lambda: embedded.status(state_dir) is None)
    assert not is_used(broker.directory)


def test_a_broker_that_is_not_ready_in_time_is_explained_and_ended(state_dir: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"did not answer within 0\.01 s"):
        EmbeddedBroker(state_dir, ready_limit_s=0.01).start()
    eventually(lambda: embedded.status(state_dir) is None)


def test_missing_java_is_explained(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(NoJava, match="Install a JDK"):
        EmbeddedBroker(state_dir).start()
    assert not state_dir.exists()


def test_a_state_directory_that_can_not_be_used_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateUnusable, match="choose another state directory"):
        EmbeddedBroker(tmp_path / "file").start()


def test_a_port_that_is_taken_at_the_last_moment(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as other:
        taken = other.getsockname()[1]
        choices = [Ports(taken, choose_ports(None, None).controller)]
        monkeypatch.setattr(
            embedded, "choose_ports", lambda last, wanted: choices.pop() if choices else choose_ports(last, wanted)
        )
        with EmbeddedBroker(state_dir) as broker:
            assert choices == []
            assert broker.status.port != taken


def test_a_class_archive_that_makes_java_crash_is_thrown_away(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    broker.directory.mkdir()
    launch = Launch(broker.directory, Java(Path("java"), "17"), tmp_path / "jars", Ports(1, 2), {}, "1g")
    launch.class_archive.touch()
    (broker.directory / "broker.log").write_text(f"# {CRASHED}:\n")
    broker._judge_death(launch)
    assert not launch.class_archive.exists()
    with pytest.raises(BrokerFailed, match=CRASHED):  # it was not the archive
        broker._judge_death(launch)


def test_use_before_start_is_a_programming_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not started"):
        _ = EmbeddedBroker(tmp_path).bootstrap_servers


class TestCommands:
    """`detent broker`, as a user calls it."""

    def detent(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "detent", "broker", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    @contextlib.contextmanager
    def run_broker(self, state_dir: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
        command = [sys.executable, "-m", "detent", "broker", "run", "--state-dir", str(state_dir), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                said = ""
                while "Stop it with" not in said:
                    line = process.stdout.readline()
                    assert line, process.stderr and process.stderr.read()
                    said += line
                yield process, said
            finally:
                process.kill()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_run_until_a_signal(self, state_dir: Path, number: signal.Signals) -> None:
        with self.run_broker(state_dir, "--property", "num.io.threads=3") as (process, said):
            broker = running(state_dir)
            assert broker.bootstrap_servers in said
            assert broker.overrides == {"num.io.threads": "3"}
            process.send_signal(number)
            rest, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, errors) == (0, "")
        assert "The broker has stopped" in rest
        assert is_gone(broker)

    def test_status_and_stop(self, state_dir: Path) -> None:
        where = ("--state-dir", str(state_dir))
        asked = self.detent("status", *where, "--json")
        assert (asked.returncode, json.loads(asked.stdout)) == (3, {"running": False})
        assert not state_dir.exists()
        assert self.detent("stop", *where).returncode == 0

        with self.run_broker(state_dir) as (process, _):
            broker = running(state_dir)
            asked = self.detent("status", *where, "--json")
            shown = json.loads(asked.stdout)
            assert asked.returncode == 0
            assert (shown["running"], shown["answering"], shown["pid"]) == (True, True, broker.pid)
            assert broker.bootstrap_servers in self.detent("status", *where).stdout
            stopped = self.detent("stop", *where)
            assert (stopped.returncode, stopped.stderr) == (0, "")
            assert is_gone(broker)
            rest, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, errors) == (0, "")
        assert "stopped from elsewhere" in rest
        assert self.detent("status", *where).returncode == 3

    def test_run_leaves_the_broker_to_others_and_tells_when_it_is_killed(self, state_dir: Path) -> None:
        with EmbeddedBroker(state_dir) as broker:
            with self.run_broker(state_dir) as (process, _):
                process.terminate()
                rest, _ = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0
            assert "ends with the last of them" in rest
            with self.run_broker(state_dir) as (process, _):
                broker.kill()
                _, errors = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 1
            assert "ended by itself or was killed" in errors

    def test_errors_are_one_paragraph(self, state_dir: Path) -> None:
        failed = self.detent("run", "--state-dir", str(state_dir), "--property", "node.id=2")
        assert failed.returncode == 1
        assert failed.stderr.startswith("Error: node.id of the embedded broker can't be overridden")
        assert failed.stderr.count("\n") == 1
        assert self.detent("run", "--property", "nonsense").returncode == 2
