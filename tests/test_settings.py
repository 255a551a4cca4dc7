"""Settings: which source wins, where values came from, what is refused and how, what is masked, what round-trips."""

from __future__ import annotations

import json
import tempfile
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.settings import BY_NAME, CATALOGUE, Settings, parse_address, parse_shards
from detent.settings_load import Loaded, load
from detent.settings_sources import SettingsError, UnreadableFile, flag, lines_of
from detent.settings_text import json_text, page, toml_key, toml_lines, toml_value
from events.cluster import Cluster
from events.masking import MASK
from events.topics import TopicSettings
from tests.settings_strategies import ENVIRON, allowed_settings, value_of
from workers import happenings

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no detent.toml but the test's own."""
    monkeypatch.chdir(tmp_path)


def written(text: str, name: str = "detent.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def flags(values: dict[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]


# Which source wins ---------------------------------------------------------------------------------------------------


def test_without_anything_the_defaults_hold() -> None:
    loaded = load(None, {}, [])
    assert loaded.settings == Settings()
    assert set(loaded.origin.values()) == {"default"}
    assert set(loaded.origin) == set(loaded.values()) == set(BY_NAME)


def test_flags_win_over_environment_over_file_over_defaults() -> None:
    written("[coordinator]\nbeat_ms = 21\nsweep_ms = 22\n\n\ndetection_ms = 301\n")
    environ = {"DETENT_COORDINATOR__DETECTION_MS": "302", "DETENT_COORDINATOR__SWEEP_MS": "23"}
    loaded = load(None, environ, ["coordinator.detection_ms=1", "coordinator.detection_ms = 303"])
    coordinator = loaded.settings.coordinator
    assert (coordinator.beat_ms, coordinator.sweep_ms, coordinator.detection_ms, coordinator.group_ms) == (
        21, 23, 303, 50,
    )  # fmt: skip
    names = ("beat_ms", "sweep_ms", "detection_ms", "group_ms")
    assert [loaded.origin[f"coordinator.{name}"] for name in names] == [
        "detent.toml:2", "DETENT_COORDINATOR__SWEEP_MS", "--set", "default",
    ]  # fmt: skip
    assert loaded.is_given("coordinator.sweep_ms")
    assert not loaded.is_given("coordinator.group_ms")


SCALARS = sorted(name for name, setting in BY_NAME.items() if setting.kind is int and name not in (
    "coordinator.beat_ms", "coordinator.detection_ms", "worker.lease_ms", "worker.heartbeat_ms", "worker.repeat_ms",
    "worker.repeat_cap_ms", "kafka.shards"))  # fmt: skip


@given(st.data())
def test_the_strongest_source_that_says_something_counts(data: st.DataObject) -> None:
    said: dict[str, list[int | None]] = {}
    for name in data.draw(st.lists(st.sampled_from(SCALARS), unique=True)):
        value = st.none() | value_of(BY_NAME[name])
        said[name] = [data.draw(value) for _ in range(3)]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "own.toml"
        in_file = {name: values[0] for name, values in said.items() if values[0] is not None}
        file.write_text("".join(f"{name} = {value}\n" for name, value in in_file.items()))
        environ = {BY_NAME[name].variable: str(values[1]) for name, values in said.items() if values[1] is not None}
        loaded = load(file, environ, flags({n: values[2] for n, values in said.items() if values[2] is not None}))
    for name, (by_file, by_variable, by_flag) in said.items():
        lines = list(in_file)
        got = (attrgetter(name)(loaded.settings), loaded.origin[name])
        if by_flag is not None:
            assert got == (by_flag, "--set")
        elif by_variable is not None:
            assert got == (by_variable, BY_NAME[name].variable)
        elif by_file is not None:
            assert got == (by_file, f"{file}:{lines.index(name) + 1}")
        else:
            assert got == (BY_NAME[name].default, "default")


def test_which_file_is_read() -> None:
    named, other = written("web.port = 1", "named.toml"), written("web.port = 2", "other.toml")
    environ = {"DETENT_CONFIG": str(other)}
    assert load(None, {}, []).settings.web.port == 8460
    written("web.port = 3")
    assert load(None, {}, []).settings.web.port == 3
    assert load(None, environ, []).origin["web.port"] == "other.toml:1"
    assert load(named, environ, []).origin["web.port"] == "named.toml:1"


def test_a_commands_own_option_is_an_origin() -> None:
    loaded = load(
        None, {}, ["state_dir=b", *flag("--state-dir", "state_dir", Path("a")), *flag("--x", "web.port", None)]
    )
    assert (loaded.settings.state_dir, loaded.origin["state_dir"]) == ("a", "--state-dir")
    with pytest.raises(SettingsError, match=r"--port: web.port is '70000'; it may be a whole number from 0 to 65_535"):
        load(None, {}, flag("--port", "web.port", 70_000))


# How things are spelled ----------------------------------------------------------------------------------------------


def test_kafka_properties_pass_through_in_every_spelling() -> None:
    written(
        """
        [kafka]
        security.protocol = "SSL"
        "ssl.ca.location" = "/ca"
        log_level = 3
        [kafka.socket]
        keepalive.enable = true
        """
    )
    environ = {"DETENT_KAFKA__SASL__MECHANISM": "PLAIN", "DETENT_KAFKA__RETRIES": "7", "DETENT_KAFKA__SHARDS": "2"}
    loaded = load(None, environ, ["kafka.linger.ms=5", "kafka.security.protocol=PLAINTEXT"])
    assert loaded.settings.kafka.shards == 2
    assert loaded.settings.kafka.properties == {
        "security.protocol": "PLAINTEXT",
        "ssl.ca.location": "/ca",
        "log_level": "3",
        "socket.keepalive.enable": "true",
        "sasl.mechanism": "PLAIN",
        "retries": "7",
        "linger.ms": "5",
    }
    assert loaded.origin["kafka.socket.keepalive.enable"] == "detent.toml:7"
    assert loaded.origin["kafka.sasl.mechanism"] == "DETENT_KAFKA__SASL__MECHANISM"


def test_names_of_spark_and_labels_keep_their_capitals() -> None:
    written('worker.labels.Disk = "ssd"\nworker.spark.conf."spark.eventLog.enabled" = true\n')
    environ = {
        "DETENT_WORKER__LABELS__DISK_TYPE": "nvme",
        "DETENT_WORKER__SPARK__CONF__spark__sql__shuffle__partitions": "8",
        "DETENT_WORKER__SPARK__CONF__spark__executorEnv__A_b": "x",
        "DETENT_WORKER__SPARK__MASTER": "yarn",
    }
    worker = load(None, environ, ["worker.labels.Zone=EU", "worker.allowed_modules=a, b.c,"]).settings.worker
    assert worker.labels == {"Disk": "ssd", "disk_type": "nvme", "Zone": "EU"}
    assert worker.spark.master == "yarn"
    assert worker.spark.conf == {
        "spark.eventLog.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.executorEnv.A_b": "x",
    }
    assert worker.allowed_modules == ["a", "b.c"]


def test_the_systems_own_variables_are_left_alone() -> None:
    environ = {
        "DETENT_STATE": "s", "DETENT_CACHE": "c", "DETENT_IVY_SETTINGS": "i", "DETENT_SERVICE_HOST": "10.0.0.1",
        "DETENT_API_PORT": "tcp://10.0.0.1:80", "DETENT_API_PORT_80_TCP": "x", "DETENT_KAFKA__SHARDS": "",
        "HOME": "/root",
    }  # fmt: skip
    loaded = load(None, environ, [])
    assert {name for name in loaded.origin if loaded.is_given(name)} == {"state_dir"}
    assert (loaded.settings.state_dir, loaded.origin["state_dir"]) == ("s", "DETENT_STATE")
    assert str(loaded.settings.coordinator_dir()) == "s/coordinator"
    assert str(load(None, environ, ["worker.state_dir=/w"]).settings.worker_dir()) == "/w"


def test_lines_are_those_on_which_values_begin() -> None:
    text = '\n'.join([
        "# one = 1", "top = 'x'", "", "[a]  # = [", "many = '''", "fake = 1", "[fake]", "'''", "list = [", "  1, # ]",
        "]", "b.c = 1", "in = { d = 1, e.f = 2 }", "[[tables]]", "x = 1", "[ 'q.r' . s ]", '"t=u" = """\\', '  """',
        "z=2", "[empty]",
    ])  # fmt: skip
    assert lines_of(text) == {
        ("top",): 2, ("a",): 4, ("a", "many"): 5, ("a", "list"): 9, ("a", "b", "c"): 12, ("a", "in", "d"): 13,
        ("a", "in", "e", "f"): 13, ("tables",): 14, ("tables", "x"): 15, ("q.r", "s"): 16, ("q.r", "s", "t=u"): 17,
        ("q.r", "s", "z"): 19, ("empty",): 20,
    }  # fmt: skip


def test_line_ends_and_byte_order_marks_of_other_systems() -> None:
    Path("detent.toml").write_bytes(b"\xef\xbb\xbf# x\r\n\r\n[web]\r\nport = 5\r\n")
    assert load(None, {}, []).origin["web.port"] == "detent.toml:4"


def test_shards_and_addresses() -> None:
    assert parse_shards("all") is None
    assert parse_shards("0,2, 5 - 7,2") == (0, 2, 5, 6, 7)
    assert load(None, {}, ["coordinator.shards=3,1"]).settings.shards_to_lead() == (1, 3)
    assert load(None, {}, ["kafka.shards=3"]).settings.shards_to_lead() == (0, 1, 2)
    assert parse_address("[::1]:70") == ("::1", 70)
    assert parse_address("host.example:0") == ("host.example", 0)


# What is refused, and how --------------------------------------------------------------------------------------------

BAD = [
    # of a wrong value: the place, the name, the value, what it may be
    ("[coordinator]\n\ndetection_ms = 5", {}, [],
     "detent.toml:3: coordinator.detection_ms is 5; it may be a whole number from 50 to 600_000"),
    ("web.port = '80'", {}, [], "detent.toml:1: web.port is '80'; it may be a whole number"),
    ("web.port = 80.0", {}, [], "web.port is 80.0; it may be"),
    ("web.port = true", {}, [], "web.port is True; it may be"),
    ("web.port = 1979-05-27", {}, [], "web.port is datetime.date(1979, 5, 27); it may be"),
    ("", {"DETENT_WEB__PORT": "8o"}, [],
     "DETENT_WEB__PORT: web.port is '8o'; it may be a whole number from 0 to 65_535"),
    ("", {}, ["web.port="], "--set: web.port is ''; it may be"),
    ("", {}, ["web.port=99999999999999999999999999"], "--set: web.port is '99999999999999999999999999'; it may be"),
    ("", {}, ["log.level=loud"], "--set: log.level is 'loud'; it may be debug, info, warning or error"),
    ("log.format = 3", {}, [], "log.format is 3; it may be key=value or json"),
    ("", {}, ["coordinator.shards=1-"], "'1-' is neither a number nor a span"),
    ("", {}, ["coordinator.shards=3-1"], "the span 3-1 is empty"),
    ("", {}, ["coordinator.shards=0-99999"], "kafka.shards is 4 (default), so the last shard is 3"),
    ("kafka.shards = 2\ncoordinator.shards = '0,2'", {}, [],
     "detent.toml:2: coordinator.shards is '0,2'; kafka.shards is 2 (detent.toml:1)"),
    ("", {}, ["coordinator.health_address=host"],
     "it may be host:port, such as 127.0.0.1:7000; it has no host or no port"),
    ("", {}, ["coordinator.health_address=host:70000"], "there are 65535 ports"),
    ("", {}, ["kafka.topic_prefix=a b"], "kafka.topic_prefix is 'a b'; it may be 1 to 200 letters"),
    ("kafka.topic_prefix = \"a\\n\"", {}, [], r"kafka.topic_prefix is 'a\n'; it may be"),
    ("", {}, ["worker.id=a/b"], "worker.id is 'a/b'; it may be up to 200 letters"),
    ("", {}, ["worker.allowed_modules=a,b-c"], "worker.allowed_modules is 'a,b-c'; it may be module names"),
    ("worker.allowed_modules = 'a'", {}, [], "worker.allowed_modules is 'a'; it may be module names"),
    ("worker.allowed_modules = [1]", {}, [], "worker.allowed_modules is [1]; it may be module names"),
    ("state_dir = ''", {}, [], "detent.toml:1: state_dir is ''; it may be a directory"),
    ("worker.state_dir = \"a\\u0000\"", {}, [], "worker.state_dir is not text: it has a zero byte or is not UTF-8"),
    ("", {"DETENT_WORKER__LABELS__A": "\udc80"}, [], "DETENT_WORKER__LABELS__A: worker.labels.a is not text"),
    ("worker.labels.a = [1]", {}, [], "worker.labels.a is of the type list; it may be text, a number, true or false"),
    ("kafka.linger.ms = 1979-05-27", {}, [], "kafka.linger.ms is of the type date; it may be text"),
    # of values that contradict each other
    ("coordinator.beat_ms = 300", {}, [],
     "default: coordinator.detection_ms is 500; it may be no less than twice coordinator.beat_ms, which "
     "is 300 (detent.toml:1)"),
    ("", {}, ["worker.lease_ms=1500"],
     "--set: worker.lease_ms is 1500; it may be no less than twice worker.heartbeat_ms, which is 1000 (default)"),
    ("", {}, ["worker.repeat_cap_ms=10"],
     "--set: worker.repeat_cap_ms is 10; it may be no less than worker.repeat_ms, which is 1000 (default)"),
    # of a wrong name: the one that was probably meant, in the source's own spelling
    ("\n[coordinator]\ndetecton_ms = 5", {}, [],
     "detent.toml:3: coordinator.detecton_ms is no setting; did you mean coordinator.detection_ms?"),
    ("[cordinator]\nbeat_ms = 5", {}, [],
     "detent.toml:2: cordinator.beat_ms is no setting; did you mean coordinator.beat_ms?"),
    ("[coordinatr]\n", {}, [], "detent.toml:1: coordinatr is no setting"),
    ("x = 1", {}, [], "detent.toml:1: x is no setting; detent config show lists them all"),
    ("", {}, ["worker.detection_ms=5"], "did you mean coordinator.detection_ms?"),
    ("", {}, ["worker.label.zone=x"], "did you mean worker.labels.zone?"),
    ("", {}, ["kafka.shard=3"], "--set: kafka.shard is no setting; did you mean kafka.shards?"),
    ("", {}, ["kafka.security_protocol=x"], "did you mean kafka.security.protocol?"),
    ("", {}, ["kafka.Linger.ms=x"], "kafka.Linger.ms is no setting"),
    ("", {"DETENT_KAFKA__SECURITY_PROTOCOL": "x"}, [], "did you mean DETENT_KAFKA__SECURITY__PROTOCOL?"),
    ("", {"DETENT_COORDINATOR__BEATMS": "x"}, [],
     "DETENT_COORDINATOR__BEATMS: coordinator.beatms is no setting; did you mean DETENT_COORDINATOR__BEAT_MS?"),
    ("", {"DETENT_NOPE__X": "1"}, [], "DETENT_NOPE__X: nope.x is no setting"),
    ("", {"DETENT_COORDINATOR_BEAT_MS": "1"}, [],
     "DETENT_COORDINATOR_BEAT_MS: coordinator.beat_ms is spelled DETENT_COORDINATOR__BEAT_MS in the environment"),
    ("", {"DETENT_STATE_DIR": "x"}, [], "DETENT_STATE_DIR: state_dir is spelled DETENT_STATE in the environment"),
    ("", {}, ["web.port"], "--set: 'web.port' is not NAME=VALUE, such as coordinator.detection_ms=300"),
    ("", {}, ["=3"], "--set: '=3' is not NAME=VALUE"),
    ("kafka = 3", {}, [], "detent.toml:1: kafka is a section; its settings are"),
    ("[[worker]]\nslots = 3", {}, [], "detent.toml:1: worker is a section"),
    ("web.port = { a = 1 }", {}, [], "web.port.a is no setting; did you mean web.port?"),
    ("worker.labels = 3", {}, [], "worker.labels is a section"),
    ("worker.labels.'' = 'x'", {}, [], "worker.labels. is no setting"),
    # of what is Detent's own to choose
    ("kafka.bootstrap.servers = 'x'", {}, [],
     "detent.toml:1: kafka.bootstrap.servers can't be set: it is said by kafka.bootstrap_servers"),
    ("", {"DETENT_KAFKA__TRANSACTIONAL__ID": "x"}, [], "kafka.transactional.id can't be set: each shard has its own"),
    ("", {}, ["kafka.isolation.level=read_uncommitted"], "can't be set: only what is committed may be read"),
    # of one thing said twice
    ("[kafka]\n'linger.ms' = 1\nlinger.ms = 2", {}, [],
     "detent.toml:3: kafka.linger.ms is set by detent.toml:2 already"),
    ("", {"DETENT_WORKER__LABELS__A": "1", "DETENT_worker__LABELS__a": "2"}, [],
     "is set by DETENT_WORKER__LABELS__A already"),
    # of references
    ("kafka.sasl.password = '${env:NOPE}'", {}, [],
     "detent.toml:1: kafka.sasl.password refers to ${env:NOPE}, but the variable NOPE is not set or is empty"),
    ("kafka.sasl.password = '${env:VOID}'", {"VOID": ""}, [], "the variable VOID is not set or is empty"),
    ("", {}, ["kafka.sasl.password=${file:no/where}"],
     "--set: kafka.sasl.password refers to ${file:no/where}, but that file can't be read: No such file"),
    ("", {}, ["kafka.sasl.password=${file:.}"], "that file can't be read: Is a directory"),
    ("", {}, ["kafka.sasl.password=${file:/dev/zero}"], "that file can't be read: it has more than 1,048,576 bytes"),
    ("", {"A": "${env:B}", "B": "b"}, ["kafka.sasl.password=${env:A}"], "which holds a reference again"),
    ("", {}, ["kafka.sasl.password=${vault:x}"], "refers to ${vault:x}; a reference is ${env:NAME} or ${file:/path}"),
    ("", {"A": "hush"}, ["web.port=${env:A}"], "--set: web.port is '${env:A}'; it may be a whole number"),
    ("", {"A": "hush"}, ["coordinator.shards=${env:A}"],
     "--set: coordinator.shards is '${env:A}'; it may be all, or shard numbers and spans from 0 on, such "
     "as 0-3 or 0,2,5-7"),
    ("", {}, [f"kafka.sasl.password={MASK}"], "only stands for a secret where settings are shown"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "environ", "said", "expected"), BAD, ids=[case[3][:60] for case in BAD])
def test_bad_input_is_told_with_place_and_way_out(
    file: str, environ: dict[str, str], said: list[str], expected: str
) -> None:
    written(file)
    with pytest.raises(SettingsError) as caught:
        load(None, environ, said)
    assert expected in str(caught.value)
    assert "hush" not in str(caught.value)
    assert len(caught.value.problems) == 1


def test_everything_that_is_wrong_is_told_at_once() -> None:
    written("web.port = 'x'\nlog.level = 'loud'\n")
    with pytest.raises(SettingsError) as caught:
        load(None, {"DETENT_KAFKA__SHARDS": "0"}, [])
    assert str(caught.value).splitlines()[0] == "the settings can't be used:"
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()[1:]] == [
        "  - detent.toml:1", "  - detent.toml:2", "  - DETENT_KAFKA__SHARDS",
    ]  # fmt: skip


def test_a_wrong_value_that_something_stronger_replaces_is_no_matter() -> None:
    written("kafka.sasl.password = '${file:gone}'\nweb.port = 'x'")
    loaded = load(None, {"DETENT_KAFKA__SASL__PASSWORD": "x"}, ["web.port=1"])
    assert loaded.settings.kafka.properties == {"sasl.password": "x"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a = \n", "it is not TOML: Invalid value (at line 1, column 5)"),
        (b"[a]\nb = 1\nb = 2\n", "it is not TOML: Cannot overwrite a value (at line 3"),
        (b"a = " + b"9" * 5000, "it is not TOML: "),
        (b"a = " + b"[" * 100_000, "it is not TOML: "),
        (b"a = '\xff'", "it is not UTF-8 text (byte 5)"),
        (b"#" * (1024 * 1024 + 1), "it has more than 1,048,576 bytes"),
    ],
)
def test_files_that_cant_be_read(content: bytes, expected: str) -> None:
    Path("detent.toml").write_bytes(content)
    with pytest.raises(UnreadableFile) as caught:
        load(None, {}, [])
    assert str(caught.value).startswith("the file detent.toml (named by its default) can't be used: ")
    assert expected in str(caught.value)


def test_files_that_are_not_there() -> None:
    with pytest.raises(UnreadableFile, match=r"the file a\.toml \(named by --config\) can't be used: No such file"):
        load(Path("a.toml"), {}, [])
    with pytest.raises(
        UnreadableFile, match=r"the file b\.toml \(named by DETENT_CONFIG\) can't be used: No such file"
    ):
        load(None, {"DETENT_CONFIG": "b.toml"}, [])
    with pytest.raises(UnreadableFile, match="Is a directory"):
        load(Path(), {}, [])


# References and secrets ----------------------------------------------------------------------------------------------


def test_references_stand_for_variables_and_files() -> None:
    written("swordfish\r\n\n", "secret")
    written(
        """
        kafka.bootstrap_servers = "${env:BROKER}:9092"
        kafka.sasl.password = "${file:secret}"
        kafka.shards = "${env:SHARDS}"
        worker.spark.conf."spark.x" = "${env:BROKER}/${spark:own}"
        """
    )
    loaded = load(None, {"BROKER": "b", "SHARDS": "3"}, ["worker.labels.host=${env:BROKER}"])
    settings = loaded.settings
    assert settings.kafka.bootstrap_servers == "b:9092"
    assert settings.kafka.shards == 3
    assert settings.kafka.properties == {"sasl.password": "swordfish"}
    assert settings.worker.spark.conf == {"spark.x": "b/${spark:own}"}
    shown = loaded.values()
    assert shown["kafka.bootstrap_servers"] == "b:9092"
    assert shown["kafka.sasl.password"] == "${file:secret}"
    assert shown["worker.labels.host"] == "${env:BROKER}"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("kafka.sasl.password", "swordfish", MASK),
        ("kafka.sasl.username", "swordfish", MASK),
        ("kafka.sasl.jaas.config", "swordfish", MASK),
        ("kafka.sasl.oauthbearer.client.secret", "swordfish", MASK),
        ("kafka.ssl.key.password", "swordfish", MASK),
        ("kafka.ssl.keystore.password", "swordfish", MASK),
        ("kafka.ssl.key.pem", "swordfish", MASK),
        ("kafka.sasl.password", "swordfish${env:A}", MASK),
        ("worker.spark.conf.spark.hadoop.fs.s3a.secret.key", "swordfish", MASK),
        ("worker.spark.conf.spark.hadoop.fs.s3a.access.key", "swordfish", MASK),
        ("worker.spark.conf.spark.hadoop.fs.azure.account.key.x", "swordfish", MASK),
        ("worker.spark.conf.spark.ssl.keyPassword", "swordfish", MASK),
        ("worker.spark.conf.spark.driver.extraJavaOptions", "-Dx.trustStorePassword=swordfish", MASK),
        ("worker.spark.conf.spark.proxy", "http://me:swordfish@host/x", f"http://{MASK}@host/x"),
        ("worker.spark.master", "spark://me:swordfish@host:1", f"spark://{MASK}@host:1"),
        ("kafka.sasl.mechanism", "PLAIN", "PLAIN"),
        ("kafka.ssl.key.location", "/key", "/key"),
        ("kafka.ssl.keystore.location", "/store", "/store"),
        ("kafka.ssl.ca.pem", "-----BEGIN", "-----BEGIN"),
        ("web.token_file", "/token", "/token"),
    ],
)
def test_secrets_are_masked_wherever_they_are_shown(name: str, value: str, shown: str) -> None:
    loaded = load(None, {"A": "swordfish"}, [f"{name}={value}"])
    assert loaded.values()[name] == shown
    assert "swordfish" not in repr(loaded)
    assert "swordfish" not in str(loaded.values())
    assert "swordfish" not in repr(Cluster("x", properties=loaded.settings.kafka.properties))


# Round trip ----------------------------------------------------------------------------------------------------------


def toml_of(values: dict[str, Any]) -> str:
    return "".join(f"{toml_key(name)} = {toml_value(value)}\n" for name, value in values.items())


def loaded_from(text: str, directory: str) -> Loaded:
    path = Path(directory) / "it.toml"
    path.write_text(text, newline="")
    return load(path, ENVIRON, [])


@given(allowed_settings())
def test_what_is_shown_loads_as_what_it_was(values: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        first = loaded_from(toml_of(values), scratch)
        shown = json.loads(json_text(first.values(), first.origin))
        assert set(values) <= set(shown) == set(first.origin)
        again = loaded_from(toml_of({name: it["value"] for name, it in shown.items()}), scratch)
        assert again.settings == first.settings
        assert again.values() == first.values()
        pasted = loaded_from("\n".join(toml_lines(first.values(), first.origin)), scratch)
        assert pasted.settings == first.settings
        # Each line tells its own number: where the values came from is right, whatever they hold.
        assert [again.origin[name] for name in shown] == [f"{scratch}/it.toml:{n}" for n in range(1, len(shown) + 1)]


@given(allowed_settings())
def test_flags_say_the_same_as_a_file(values: dict[str, Any]) -> None:
    texts = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in values.items()}
    sayable = {
        name: text for name, text in texts.items() if text == text.strip() and "=" not in name and name == name.strip()
    }
    with tempfile.TemporaryDirectory() as scratch:
        by_file = loaded_from(toml_of({name: values[name] for name in sayable}), scratch)
    assert load(None, ENVIRON, flags(dict(sayable))).settings == by_file.settings


# The page, and the modules that the settings are for -----------------------------------------------------------------


def test_the_page_is_what_the_settings_say() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == page(), "run `make docs`"


def test_the_example_of_the_page_loads() -> None:
    example = page().split("```toml\n")[1].split("```")[0]
    written("x", "password")
    loaded = load(written(example.replace("/run/secrets/kafka-password", "password")), {}, [])
    assert loaded.settings.kafka.properties["sasl.mechanism"] == "SCRAM-SHA-512"
    assert loaded.settings.worker.spark.conf == {"spark.executor.memory": "4g"}


def test_every_setting_is_documented_bounded_and_has_a_default_that_is_allowed() -> None:
    for setting in CATALOGUE:
        assert setting.says.endswith("."), setting.name
        assert setting.may_be, setting.name
        assert "|" not in setting.says + setting.may_be
    given_all = load(None, {}, [f"{name}={s.default}" for name, s in BY_NAME.items() if not s.is_list])
    assert given_all.settings == Settings()


def test_defaults_are_those_of_the_modules_they_are_for() -> None:
    kafka, worker = Settings().kafka, Settings().worker
    topics, cluster = TopicSettings(), Cluster("")
    assert (kafka.topic_prefix, kafka.shards) == (cluster.prefix, cluster.shards)
    for name in ("forensics_window_ms", "delete_retention_ms", "input_retention_ms", "dead_letter_retention_ms"):
        assert getattr(kafka, name) == getattr(topics, name)
    assert kafka.max_record_bytes == topics.max_record_bytes
    own = happenings.Settings(worker="w")
    shared = set(msgspec.structs.asdict(own)) & set(msgspec.structs.asdict(worker))
    assert shared == {"slots", "labels", "lease_ms", "stall_ms", "stop_patience_ms", "repeat_ms", "repeat_cap_ms"}
    assert all(getattr(own, name) == getattr(worker, name) for name in shared)
