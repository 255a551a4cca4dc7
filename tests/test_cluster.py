"""Which errors of the client pass by themselves, and which are a broker that turns us away."""

from __future__ import annotations

import logging
import socket

from confluent_kafka import KafkaError

from events.cluster import PASSING, REMEDIES, Cluster, Repetitions, passes, refuses
from events.errors import AccessRefused, BrokerUnreachable


def test_an_error_passes_or_is_a_refusal_and_never_both() -> None:
    assert not PASSING & REMEDIES.keys()
    for code in REMEDIES:
        assert refuses(KafkaError(code))
        assert not passes(KafkaError(code))
    assert not refuses(KafkaError(KafkaError._TRANSPORT, "Disconnected: SSL connection closed by peer"))


def test_a_refusal_says_what_was_done_why_and_what_to_do() -> None:
    error = KafkaError(KafkaError._SSL, "SSL handshake failed: certificate verify failed.")
    refused = Cluster("one:9092").refusal("reading detent.events/0", error)
    assert isinstance(refused, AccessRefused)
    assert str(refused).startswith(
        "the broker at one:9092 refused us while reading detent.events/0: SSL handshake failed: certificate verify "
        "failed (_SSL). Check that kafka.security.protocol is what this address speaks"
    )


def test_where_nobody_listens_nobody_turned_us_away() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port, nobody answers
        cluster = Cluster(f"127.0.0.1:{taken.getsockname()[1]}")
        assert cluster.turned_away("looking in", 0.3) is None
        assert isinstance(cluster.no_answer("looking in", 0.3), BrokerUnreachable)


def test_what_the_client_repeats_is_said_once_in_a_while_with_how_often() -> None:
    now = [0.0]
    repetitions = Repetitions(10, lambda: now[0])

    def said(number: int, what: str = "refused 100%") -> str:
        record = logging.LogRecord("x", logging.ERROR, "", 1, "%s [%s] %s", ("FAIL", f"client-{number}", what), None)
        return record.getMessage() if repetitions.filter(record) else ""

    assert said(1) == "FAIL [client-1] refused 100%"
    assert [said(number) for number in range(5)] == [""] * 5
    assert said(1, "reset") == "FAIL [client-1] reset"
    now[0] = 10.0
    assert said(2) == "FAIL [client-2] refused 100% (5 more like it since the last one)"
    now[0] = 20.0
    assert said(3) == "FAIL [client-3] refused 100%"
    debug = logging.LogRecord("x", logging.DEBUG, "", 1, "all of it", None, None)
    assert all(repetitions.filter(debug) for _ in range(3))
