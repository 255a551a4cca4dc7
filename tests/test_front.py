"""The pages of a process: what is asked is answered, and every connection ends with it."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from events.front import Front, Page
from tests.logs import until

LARGE = b"x" * 20_000_000  # more than the buffers of both sides take


def a_front() -> Front:
    pages: dict[str, Callable[[], Page]] = {"/healthz": lambda: Page(200, b"ok"), "/large": lambda: Page(200, LARGE)}
    front = Front("127.0.0.1", 0, pages)
    front.start()
    return front


def connect(front: Front) -> socket.socket:
    host, _, port = front.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_pages_are_shown_and_others_are_named() -> None:
    front = a_front()
    try:
        with urlopen(f"http://{front.address}/healthz", timeout=30) as answer:
            assert answer.read() == b"ok"
        with urlopen(f"http://{front.address}/large", timeout=30) as answer:
            assert answer.read() == LARGE
        with pytest.raises(HTTPError, match="404") as refused:
            urlopen(f"http://{front.address}/none", timeout=30)
        assert refused.value.read() == b"there are /healthz, /large\n"
        refused.value.close()
    finally:
        front.stop()


@pytest.mark.parametrize("asked", [b"", b"GET /watch HTTP/1.1\r\n\r\n", b"GET /large HTTP/1.1\r\n\r\n"])
def test_connections_of_all_kinds_end_with_it(asked: bytes) -> None:
    """Silent ones, ones that are held, and ones whose answer nobody takes."""
    front = a_front()
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("error")
        held = [stack.enter_context(connect(front)) for _ in range(3)]
        for one in held:
            one.sendall(asked)
        until(lambda: len(front._connections) == 3, "them to be accepted")
        front.stop()
        assert not front._connections
        for one in held:
            ended(one)
        gc.collect()


@pytest.fixture
def only_what_is_new() -> Iterator[None]:
    """The collector looks at what a test makes, not at all that was there before it."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("only_what_is_new")
def test_a_connection_that_is_accepted_while_it_ends_is_closed() -> None:
    """Again and again, so that some are caught at every step of being accepted."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a transport or a socket that is left open says so
        for _ in range(50):
            front, made = a_front(), list[socket.socket]()
            front._loop.call_soon_threadsafe(lambda f=front, m=made: m.append(connect(f)))  # type: ignore[misc]
            front.stop()
            with made[0] as one:
                ended(one)
            del front
            gc.collect()


def ended(one: socket.socket) -> None:
    """All that was sent, and then nothing."""
    try:
        while one.recv(1_000_000):
            pass
    except ConnectionResetError:
        pass
