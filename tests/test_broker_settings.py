"""What the embedded broker runs with: free ports, its own identity, properties that Java reads back."""

from __future__ import annotations

import socket

import pytest

from events.broker_settings import (
    HOST,
    FixedProperty,
    Ports,
    PortTaken,
    check_overrides,
    choose_ports,
    is_free,
    server_properties,
)


def test_a_taken_port() -> None:
    with socket.create_server((HOST, 0)) as other:
        taken = other.getsockname()[1]
        assert not is_free(taken)
        with pytest.raises(PortTaken, match=f"port {taken} "):
            choose_ports(None, taken)
        chosen = choose_ports(Ports(taken, taken), None)
        assert taken not in (chosen.client, chosen.controller)
        assert chosen.client != chosen.controller
    assert choose_ports(chosen, None) == chosen


@pytest.mark.parametrize("name", ["node.id", "listeners", "log.dirs"])
def test_who_the_broker_is_can_not_be_overridden(name: str) -> None:
    with pytest.raises(FixedProperty, match=name):
        check_overrides({"num.io.threads": "3", name: "x"})


def test_properties_are_written_as_java_reads_them() -> None:
    text = server_properties(Ports(1, 2), {"a=b": " c:\\d\né"})
    assert "a\\u003db=\\u0020c:\\u005cd\\u000a\\u00e9\n" in text
    assert f"listeners=PLAINTEXT://{HOST}:1,CONTROLLER://{HOST}:2\n" in text
