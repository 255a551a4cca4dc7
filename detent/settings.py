"""What can be set, said once: name, type, default, bounds and one sentence for each setting.

The structs are the model; `CATALOGUE` is the same as a flat list, from which loading, `config show`, the help of
options and docs/configuration.md are made. Where values come from is `detent.settings_load`'s business. Pure.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from events.masking import shown_entry, shown_text

SECOND_MS, HOUR_MS, DAY_MS = 1000, 3_600_000, 86_400_000
MIB = 1024 * 1024
MAX_SHARDS = 10_000
STATE_VARIABLE = "DETENT_STATE"

# How the Kafka client spells its properties; it has no others without a dot.
PROPERTY = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)+|acks|debug|log_level|partitioner|retries")
# Properties that Detent's promises hang on, and what to do instead.
ALWAYS_OURS = {
    "bootstrap.servers": "it is said by kafka.bootstrap_servers",
    "metadata.broker.list": "it is said by kafka.bootstrap_servers",
    "transactional.id": "each shard has its own, by which its leader is fenced",
    **dict.fromkeys(
        ("acks", "request.required.acks", "enable.idempotence"), "transactions need all replicas and idempotence"
    ),
    "isolation.level": "only what is committed may be read",
    **dict.fromkeys(
        ("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store"), "positions are kept on the log itself"
    ),
    "enable.partition.eof": "replay needs to see the end of a partition",
    "auto.offset.reset": "a position that the log no longer has is an error, never a jump",
}


def number(low: int, high: int, says: str) -> Meta:
    return Meta(ge=low, le=high, description=says)


def text(says: str, *, may_be: str = "any text", pattern: str | None = None, variable: str = "") -> Meta:
    return Meta(description=says, pattern=pattern, extra={"may_be": may_be, "variable": variable})


def parsed(says: str, may_be: str, parse: Callable[[str], object]) -> Meta:
    """A text with a form of its own; `parse` raises ValueError."""
    return Meta(description=says, extra={"may_be": may_be, "parse": parse})


def parse_shards(chosen: str) -> tuple[int, ...] | None:
    """`0,2,5-7` as numbers in order; None for `all`."""
    if chosen == "all":
        return None
    found: set[int] = set()
    for part in chosen.split(","):
        if not (span := re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", part, re.ASCII)):
            raise ValueError(f"{part!r} is neither a number nor a span of numbers")
        low, high = int(span[1]), int(span[2] or span[1])
        if low > high:
            raise ValueError(f"the span {part.strip()} is empty")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def parse_address(address: str) -> tuple[str, int]:
    """`host:port`, or `[::1]:port`; port 0 is any free one."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]/]+)):(\d{1,5})", address, re.ASCII)
    if not found:
        raise ValueError("it has no host or no port")
    if int(found[3]) > 65_535:
        raise ValueError("there are 65535 ports")
    return found[1] or found[2], int(found[3])


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all sections have in common: nothing unknown gets in, and no secret gets out by way of a log."""

    def __repr__(self) -> str:
        shown = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, dict):
                value = {key: shown_entry(key, entry) for key, entry in value.items()}
            elif isinstance(value, str):
                value = shown_text(value)
            shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


IDENTITY = {"pattern": r"\A[\w.:-]{0,200}\Z", "may_be": "up to 200 letters, digits and . _ : -, or empty"}
DIRECTORY = {"may_be": "a directory, relative to where the process starts or absolute"}


class Kafka(Section, frozen=True):
    """Which cluster, under which names, and how its topics are."""

    bootstrap_servers: Annotated[
        str,
        text(
            "The brokers to connect to first. Empty: the embedded broker, which Detent starts by itself.",
            pattern=r"\A\S*\Z",
            may_be="host:port, several separated by commas without blanks, or empty",
        ),
    ] = ""
    topic_prefix: Annotated[
        str,
        text(
            "What the names of Detent's topics begin with; several Detents on one cluster have different ones.",
            pattern=r"\A[a-zA-Z0-9._-]{1,200}\Z",
            may_be="1 to 200 letters (a-z, A-Z), digits and . _ -",
        ),
    ] = "detent"
    shards: Annotated[
        int, number(1, MAX_SHARDS, "How many shards the jobs are spread over. It can't be changed once topics exist.")
    ] = 4
    replication: Annotated[
        int, number(0, 100, "Replicas of each topic that Detent creates. 0: three, or as many as there are brokers.")
    ] = 0
    forensics_window_ms: Annotated[
        int, number(0, 3650 * DAY_MS, "How long every transition is kept before compaction leaves only the newest.")
    ] = 7 * DAY_MS
    delete_retention_ms: Annotated[
        int, number(60_000, 3650 * DAY_MS, "How long tombstones stay, and so how old a mirror may be.")
    ] = DAY_MS
    input_retention_ms: Annotated[
        int, number(60_000, 3650 * DAY_MS, "How long commands and reports wait for a coordinator.")
    ] = 7 * DAY_MS
    dead_letter_retention_ms: Annotated[
        int, number(60_000, 3650 * DAY_MS, "How long records that could not be read are kept for people to look at.")
    ] = 30 * DAY_MS
    max_record_bytes: Annotated[
        int, number(MIB, 64 * MIB, "The largest record that Detent writes, and that its topics take.")
    ] = 4 * MIB
    properties: Annotated[
        dict[str, str],
        text("Any property of the Kafka client (librdkafka), for all its clients: TLS, SASL, tuning.", may_be="text"),
    ] = {}


class Coordinator(Section, frozen=True):
    """The process that decides."""

    id: Annotated[
        str,
        text("The coordinator's name, different for each process. Empty: host name and process id.", **IDENTITY),
    ] = ""
    shards: Annotated[
        str,
        parsed(
            "The shards it may lead.", "all, or shard numbers and spans from 0 on, such as 0-3 or 0,2,5-7", parse_shards
        ),
    ] = "all"
    beat_ms: Annotated[int, number(10, 60_000, "How often it says that it lives.")] = 100
    detection_ms: Annotated[
        int, number(50, 600_000, "How long a leader may be silent before a standby takes its shards over.")
    ] = 500
    lease_ms: Annotated[
        int,
        number(100, HOUR_MS, "How long a worker may be silent before its tasks go to others; not less than its lease."),
    ] = 10_000
    sweep_ms: Annotated[
        int, number(10, HOUR_MS, "How often it looks for steps that were not taken and workers that are lost.")
    ] = SECOND_MS
    group_records: Annotated[int, number(1, 100_000, "The most inputs that one transaction answers.")] = 1000
    group_bytes: Annotated[int, number(1024, 64 * MIB, "The most bytes of inputs that one transaction answers.")] = (
        4 * MIB
    )
    group_ms: Annotated[int, number(0, 1000, "How long it goes on deciding before it commits what it has decided.")] = (
        50
    )
    transaction_timeout_ms: Annotated[
        int, number(1000, 900_000, "After how long the broker gives up a transaction whose writer is gone.")
    ] = 5000
    state_dir: Annotated[str, text("Where the mirror is kept. Empty: coordinator in state_dir.", **DIRECTORY)] = ""
    health_address: Annotated[
        str,
        parsed(
            "Where standbys connect, to notice its death at once. Port 0: any free one.",
            "host:port, such as 127.0.0.1:7000",
            parse_address,
        ),
    ] = "127.0.0.1:0"


class Spark(Section, frozen=True):
    """The session that a worker's tasks run in."""

    master: Annotated[
        str, text("Spark's master.", may_be="local[*], spark://…, k8s://…, yarn or sc://…", pattern=r"\A\S+\Z")
    ] = "local[*]"
    conf: Annotated[dict[str, str], text("Any property of Spark.", may_be="text")] = {}
    slice_ms: Annotated[
        int,
        number(10, 10 * 60_000, "How long a slice of a task's work should take; a checkpoint waits for one at most."),
    ] = 3000


class Worker(Section, frozen=True):
    """The process that runs tasks."""

    id: Annotated[
        str,
        text(
            "The worker's name, different for each and the same after a restart. Empty: the host's name.",
            **IDENTITY,
        ),
    ] = ""
    slots: Annotated[int, number(1, 10_000, "How many tasks it runs at once.")] = 4
    labels: Annotated[
        dict[str, str], text("What it offers; a job's env.labels choose the workers that have them all.", may_be="text")
    ] = {}
    lease_ms: Annotated[
        int, number(100, HOUR_MS, "How long it may go without an answer from Kafka before it stops its own tasks.")
    ] = 10_000
    heartbeat_ms: Annotated[int, number(20, 60_000, "How often it says what it runs.")] = SECOND_MS
    stall_ms: Annotated[
        int, number(100, 7 * DAY_MS, "How long a task may make no progress before it is reported as stalled.")
    ] = 60_000
    stop_patience_ms: Annotated[
        int, number(100, HOUR_MS, "How long a task may take to stop before it is given up.")
    ] = 30_000
    repeat_ms: Annotated[
        int, number(10, HOUR_MS, "The first pause before a report is repeated that nobody has noted; it doubles.")
    ] = SECOND_MS
    repeat_cap_ms: Annotated[int, number(10, DAY_MS, "The longest pause before a report is repeated.")] = 60_000
    state_dir: Annotated[str, text("Where the ledger is kept. Empty: worker in state_dir.", **DIRECTORY)] = ""
    allowed_modules: Annotated[
        list[str],
        Meta(
            description="Python modules, with all below them, that jobs may take code from. Empty: none.",
            extra={"may_be": "module names", "each": r"[^\W\d]\w*(\.[^\W\d]\w*)*"},
        ),
    ] = []
    engine: Annotated[
        str,
        text(
            "What runs its tasks. A module that is not Detent's own must be among the allowed ones.",
            pattern=r"\A[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*\Z",
            may_be="module:name",
        ),
    ] = "workers.spark.engine:SparkEngine"
    health_address: Annotated[
        str,
        parsed(
            "Where it shows over HTTP whether it lives and is ready, and its metrics. Port 0: any free one.",
            "host:port, such as 127.0.0.1:7001",
            parse_address,
        ),
    ] = "127.0.0.1:0"
    spark: Spark = Spark()


class Web(Section, frozen=True):
    """REST, metrics and the web page."""

    host: Annotated[
        str,
        text("The address it listens on; 0.0.0.0 is all.", pattern=r"\A[^\s/]+\Z", may_be="a host's name or address"),
    ] = "127.0.0.1"
    port: Annotated[int, number(0, 65_535, "The port it listens on. 0: any free one.")] = 8460
    token_file: Annotated[
        str,
        text(
            "A file with the token of those who may operate. Empty: none is asked for, on loopback only.",
            may_be="a file's path",
        ),
    ] = ""
    read_token_file: Annotated[
        str, text("A file with the token of those who may only look. Empty: there is none.", may_be="a file's path")
    ] = ""
    names: Annotated[
        list[str],
        Meta(
            description="Names, besides its address, that it may be asked by: of a proxy in front of it, for instance.",
            extra={"may_be": "hosts' names, without ports", "each": r"[\w.-]+"},
        ),
    ] = []


class Log(Section, frozen=True):
    """What processes say on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least that is said. Commands that end by themselves say warnings unless this is set."),
    ] = "info"
    format: Annotated[
        Literal["key=value", "json"], Meta(description="One line of key=value pairs, or one JSON object a line.")
    ] = "key=value"


class Settings(Section, frozen=True):
    """Everything that can be set."""

    state_dir: Annotated[
        str,
        text(
            "Everything Detent keeps on this machine: the embedded broker's data, the mirror, the ledger.",
            pattern=r"\S",
            variable=STATE_VARIABLE,
            **DIRECTORY,
        ),
    ] = ".detent"
    kafka: Kafka = Kafka()
    coordinator: Coordinator = Coordinator()
    worker: Worker = Worker()
    web: Web = Web()
    log: Log = Log()

    def coordinator_dir(self) -> PurePath:
        return PurePath(self.coordinator.state_dir or PurePath(self.state_dir, "coordinator"))

    def worker_dir(self) -> PurePath:
        return PurePath(self.worker.state_dir or PurePath(self.state_dir, "worker"))

    def shards_to_lead(self) -> tuple[int, ...]:
        chosen = parse_shards(self.coordinator.shards)
        return tuple(range(self.kafka.shards)) if chosen is None else chosen


class Setting(msgspec.Struct, frozen=True):
    """One setting, or a table of settings that users name themselves (`kafka.*`)."""

    path: tuple[str, ...]  # where it is in the structs
    kind: Any  # the bare type
    meta: Meta
    default: Any

    @property
    def is_table(self) -> bool:
        return typing.get_origin(self.kind) is dict

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.kind) is list

    @property
    def name(self) -> str:
        """As users spell it; of a table, what its entries begin with, dot included."""
        if not self.is_table:
            return ".".join(self.path)
        return ".".join(self.path).removesuffix("properties").removesuffix(".") + "."

    @property
    def says(self) -> str:
        return self.meta.description or ""

    @property
    def variable(self) -> str:
        return self.extra.get("variable") or "DETENT_" + self.name.upper().replace(".", "__")

    @property
    def extra(self) -> dict[str, Any]:
        return self.meta.extra or {}

    @property
    def may_be(self) -> str:
        if typing.get_origin(self.kind) is Literal:
            *most, last = typing.get_args(self.kind)
            return f"{', '.join(most)} or {last}"
        if self.kind is int:
            return f"a whole number from {self.meta.ge:,} to {self.meta.le:,}".replace(",", "_")
        return str(self.extra["may_be"])


def _settings_of(section: type[Section], path: tuple[str, ...]) -> Iterator[Setting]:
    for field in msgspec.structs.fields(section):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from _settings_of(field.type, (*path, field.name))
            continue
        kind, meta = typing.get_args(field.type)
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        yield Setting((*path, field.name), kind, meta, default)


CATALOGUE = tuple(_settings_of(Settings, ()))
BY_NAME = {setting.name: setting for setting in CATALOGUE if not setting.is_table}
# The most particular first: kafka.* must not swallow another's entries.
TABLES = tuple(sorted((s for s in CATALOGUE if s.is_table), key=lambda s: -len(s.name)))
SECTIONS = frozenset(".".join(s.path[:n]) for s in CATALOGUE for n in range(1, len(s.path))) | {
    table.name.removesuffix(".") for table in TABLES
}


def table_of(name: str) -> Setting | None:
    """The table that an entry with this name is in."""
    return next((table for table in TABLES if name.startswith(table.name) and name != table.name), None)


def says(name: str) -> str:
    """The sentence of a setting, for the help of an option that sets it."""
    return f"{BY_NAME[name].says} Setting: {name}."
