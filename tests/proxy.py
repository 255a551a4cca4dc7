"""A TCP proxy on loopback that can stop forwarding, refuse, and delay: a network that a test can cut.

Kafka's clients go where the broker says it is, not where they first connected. So the broker gets a second listener
that is reached through the proxy and is announced at the proxy's port: `proxied_broker`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from events import broker_launch, embedded
from events.broker_settings import HOST, find_free_port, server_properties
from events.embedded import EmbeddedBroker
from events.front import end_all

CHUNK = 64 * 1024
PATIENT_S = 180.0  # brokers of these tests are killed while all their clients keep the machine busy


class Proxy:
    """Forwards from `port` to `target`. One thread with an event loop; the methods are for any other thread."""

    def __init__(self, target: int) -> None:
        self.target, self.port = target, 0
        self.connections = 0
        self._delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def hold(self) -> None:
        """Connections stay and are made, and nothing passes: a cable that was pulled."""
        self._call(self._open.clear)

    def refuse(self) -> None:
        """Connections end, and new ones end at once."""
        self._call(self._refuse)

    def delay(self, seconds: float) -> None:
        """What passes from now on does so that much later."""
        self._delay_s = seconds

    def heal(self) -> None:
        self._delay_s = 0.0
        self._call(self._heal)

    def close(self) -> None:
        self._call(self._loop.stop)
        self._thread.join(10)

    def _call(self, what: object) -> None:
        self._loop.call_soon_threadsafe(what)  # type: ignore[arg-type]

    def _refuse(self) -> None:
        self._refusing = True
        for writer in list(self._writers):
            writer.transport.abort()

    def _heal(self) -> None:
        self._refusing = False
        self._open.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        # Below the ports of outgoing connections, as the broker's own: see events/broker_settings.py.
        self.port = find_free_port({self.target})
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, self.port))
        self._ready.set()
        self._loop.run_forever()
        self._refuse()
        self._loop.run_until_complete(end_all(server, self._writers))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            answers, there = await asyncio.open_connection(HOST, self.target)
            self._writers.add(there)
            both = [
                asyncio.ensure_future(self._pass(reader, there)),
                asyncio.ensure_future(self._pass(answers, writer)),
            ]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for passing in both:
                passing.cancel()
        except OSError:
            pass  # the broker is away: the client sees its connection end
        finally:
            for end in (writer, there):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            return  # an end of the connection is gone; the other follows


@contextmanager
def proxied_broker(state_dir: Path) -> Iterator[tuple[EmbeddedBroker, Proxy]]:
    """A broker of one's own that can be reached directly (`bootstrap_servers`) and through the proxy (`address`)."""
    with broker_behind(state_dir, 1) as (broker, (proxy,)):
        yield broker, proxy


@contextmanager
def broker_behind(state_dir: Path, count: int) -> Iterator[tuple[EmbeddedBroker, list[Proxy]]]:
    """The same with several proxies, each a way of its own."""
    taken: set[int] = set()
    for _ in range(count):
        taken.add(find_free_port(taken))
    proxies = {f"PROXIED{number}": Proxy(behind) for number, behind in enumerate(sorted(taken))}

    with BrokerBehind(state_dir, proxies) as broker:
        yield broker, list(proxies.values())
    embedded.stop(state_dir)
    for proxy in proxies.values():
        proxy.close()


class BrokerBehind(EmbeddedBroker):
    """A broker with further listeners, each announced at the address of a proxy."""

    def __init__(self, state_dir: Path, proxies: dict[str, Proxy]) -> None:
        super().__init__(state_dir, ready_limit_s=PATIENT_S)
        self._proxies = proxies

    def start(self) -> Self:
        with pytest.MonkeyPatch.context() as patch:  # for this start only: others may start brokers of their own
            patch.setattr(broker_launch, "server_properties", self._with_more_listeners)
            return super().start()

    def _with_more_listeners(self, ports: object, overrides: object, data: str = "data") -> str:
        text = server_properties(ports, overrides, data)  # type: ignore[arg-type]
        given = dict(line.split("=", 1) for line in text.splitlines())
        proxies = self._proxies
        named = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **dict.fromkeys(proxies, "PLAINTEXT")}
        listening = [f"{name}://{HOST}:{proxy.target}" for name, proxy in proxies.items()]
        announced = [f"{name}://{proxy.address}" for name, proxy in proxies.items()]
        more = {
            "listeners": ",".join([given["listeners"], *listening]),
            "advertised.listeners": ",".join([given["advertised.listeners"], *announced]),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in named.items()),
            "inter.broker.listener.name": "PLAINTEXT",
        }
        return "".join(f"{name}={value}\n" for name, value in (given | more).items())
