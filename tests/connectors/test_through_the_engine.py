"""Each connector through the engine, as a worker uses it: started, staged, published twice, removed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from events.embedded import EmbeddedBroker
from tests.connectors import parts
from tests.connectors.postgres import PASSWORD, USER, Postgres
from tests.connectors.test_iceberg_sink import Table
from tests.connectors.test_kafka_sink import Target
from tests.connectors.test_kafka_source import Topic
from tests.spark_parts import Hand, ids, job, sink, source
from workers import happenings as h
from workers.spark.engine import SparkEngine

pytestmark = [pytest.mark.broker, parts.SPARK_SOCKETS]
NAMES = (f"connected-{number}" for number in itertools.count())
ROWS = 3000
LOGIN = {"user": USER, "password": {"secret": "env:PG_PASSWORD"}}


def run(engine: SparkEngine, body: str, tasks: int = 2) -> Hand:
    """To the end; published twice, and staging removed."""
    done = Hand(engine, body, next(NAMES))
    staged = [done.run(done.who(task)) for task in range(tasks)]
    pieces = [piece for each in staged for piece in each.pieces]
    assert sum(piece.rows for piece in pieces) == ROWS
    for _ in range(2):
        published = done.publish(*pieces)
        assert isinstance(published, h.Published), published
        assert published.rows == ROWS
    removed = done.remove()
    assert isinstance(removed, h.StagingGone), removed
    assert removed.removed == 0
    return done


def test_into_a_database_and_out_of_it(
    engine: SparkEngine, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_PASSWORD", PASSWORD)
    login = {"url": postgres.url, **LOGIN, "table": postgres.a_table("id BIGINT")}
    into = {"name": "out", "kind": "jdbc", "from": ["in"], "options": login}
    run(engine, job([source(rows=ROWS, parallelism=2)], [into]))
    assert Counter(row[0] for row in postgres.ask(f"SELECT id FROM {login['table']}")) == Counter(range(ROWS))
    assert not postgres.staged()
    run(engine, job([source(kind="jdbc", parallelism=2, key_column="id", **login)], [sink(tmp_path / "out")]))
    assert ids(tmp_path / "out") == Counter(range(ROWS))


def test_into_an_iceberg_table_and_out_of_it(engine: SparkEngine, tmp_path: Path) -> None:
    given = {"table": "c.db.t", "catalog": {"type": "hadoop", "warehouse": str(tmp_path / "warehouse")}}
    into = {"name": "out", "kind": "iceberg", "from": ["in"], "options": given}
    run(engine, job([source(rows=ROWS, parallelism=2)], [into]))
    assert Table(tmp_path / "warehouse" / "db" / "t").ids() == Counter(range(ROWS))
    run(engine, job([source(kind="iceberg", **given)], [sink(tmp_path / "out")]), tasks=1)
    assert ids(tmp_path / "out") == Counter(range(ROWS))


def test_into_a_topic_and_out_of_it(engine: SparkEngine, broker: EmbeddedBroker, tmp_path: Path) -> None:
    target = Target(broker.bootstrap_servers)
    servers = {"bootstrap_servers": broker.bootstrap_servers}
    options = {**servers, "topic": target.name, "staging": str(tmp_path / "staging"), "marker_topic": target.markers}
    into = {"name": "out", "kind": "kafka", "from": ["in"], "options": options}
    run(engine, job([source(rows=ROWS, parallelism=2)], [into]))
    assert target.ids() == Counter(range(ROWS))
    given = {**servers, "topics": [target.name], "format": "json", "schema": "id BIGINT"}
    run(engine, job([source(kind="kafka", parallelism=2, **given)], [sink(tmp_path / "out")]))
    assert ids(tmp_path / "out") == Counter(range(ROWS))


def test_Z3_an_offset_that_is_gone_ends_the_attempt_for_good(
    engine: SparkEngine, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic = Topic(broker.bootstrap_servers, partitions=1)
    topic.send([json.dumps({"id": i}).encode() for i in range(100)])
    given = {"bootstrap_servers": topic.servers, "topics": [topic.name], "format": "json", "schema": "id BIGINT"}
    body = job([source(kind="kafka", continuous=True, **given)], [sink(tmp_path / "out")])
    done = Hand(engine, body, next(NAMES))
    done.start(done.who())
    done.heard.next(done.who(), h.Started)
    staged = done.stage(done.who())
    done.stop(done.who())
    topic.send([b'{"id": 100}'])
    topic.expire(101)
    crashed = done.crash(done.who(attempt=2), staged.position, checkpoint=1)
    assert crashed.lasting
    assert "checkpoint 1" in crashed.reason
    assert "begins at offset 101 now" in crashed.reason


def test_a_secret_is_in_nothing_that_is_said(
    engine: SparkEngine, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PG_PASSWORD", "wrong-and-secret")
    options = {"url": postgres.url, **LOGIN, "table": "t"}
    into = {"name": "out", "kind": "jdbc", "from": ["in"], "options": options}
    done = Hand(engine, job([source(rows=1)], [into]), next(NAMES))
    crashed = done.crash(done.who())
    assert crashed.lasting
    assert "password authentication failed" in crashed.reason
    assert "wrong-and-secret" not in f"{done.heard.all} {caplog.text}"
