"""What a coordinator shows over HTTP: whether it lives, whether it is ready, its metrics; and the connections by which
coordinators notice each other's death at once. One thread with an event loop. It decides nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.peers import Peers

LOG = logging.getLogger(__name__)
LOOK_EVERY_S = 0.05
REQUEST_BYTES = 8192
CONNECT_S = 1.0


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


class Front:
    def __init__(self, host: str, port: int, pages: dict[str, Callable[[], Page]]) -> None:
        self._host, self._port, self._pages = host, port, pages
        self._peers: Peers | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="front", daemon=True)
        self._ready = threading.Event()
        self._error: OSError | None = None
        self._watching: dict[str, asyncio.Task[None]] = {}
        self.address = ""

    def start(self) -> None:
        """Raises OSError when the address can't be had."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def watch(self, peers: Peers) -> None:
        self._peers = peers

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(
                asyncio.start_server(self._serve, self._host, self._port, limit=REQUEST_BYTES)
            )
        except OSError as error:
            self._error = error
            self._ready.set()
            return
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._ready.set()
        looking = self._loop.create_task(self._look())
        self._loop.run_forever()
        server.close()
        looking.cancel()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    # Serving -------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
            parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            path = parts[1].split("?")[0] if len(parts) == 3 and parts[0] in ("GET", "HEAD") else ""
            if path == "/watch":
                await reader.read()  # held until either side ends
                return
            page = self._page(path)
            writer.write(
                f"HTTP/1.1 {page.status} {'OK' if page.status == 200 else 'Not OK'}\r\ncontent-type: {page.kind}\r\n"
                f"content-length: {len(page.body)}\r\nconnection: close\r\n\r\n".encode()
            )
            writer.write(page.body if parts[0] == "GET" else b"")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
            LOG.debug("a request came to nothing: %r", error)
        except asyncio.CancelledError:
            LOG.debug("a connection ends with this process")
        finally:
            writer.close()

    def _page(self, path: str) -> Page:
        page = self._pages.get(path)
        if page is None:
            return Page(404, f"there are {', '.join(sorted(self._pages))}\n".encode())
        return page()

    # Watching ------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Hold a connection to everyone who is heard."""
        while True:
            if self._peers is not None:
                for instance, address in self._peers.addresses().items():
                    if instance not in self._watching:
                        self._watching[instance] = self._loop.create_task(self._hold(self._peers, instance, address))
                for instance in [i for i, task in self._watching.items() if task.done()]:
                    del self._watching[instance]
            await asyncio.sleep(LOOK_EVERY_S)

    async def _hold(self, peers: Peers, instance: str, address: str) -> None:
        """Until the connection ends and can't be made again. One that never came about says nothing."""
        host, _, port = address.rpartition(":")
        held = False
        while True:
            try:
                connecting = asyncio.open_connection(host.strip("[]"), int(port))
                reader, writer = await asyncio.wait_for(connecting, CONNECT_S)
            except ConnectionRefusedError:
                if held:
                    LOG.info("the connection to a coordinator has ended instance=%s address=%s", instance, address)
                    peers.lose(instance)
                    return
                await asyncio.sleep(CONNECT_S)
                return
            except (OSError, TimeoutError, ValueError) as error:
                LOG.debug("no connection to %s: %r", address, error)
                await asyncio.sleep(CONNECT_S)
                return
            try:
                writer.write(b"GET /watch HTTP/1.1\r\nhost: detent\r\n\r\n")
                held = True
                await reader.read()
            except OSError:
                pass  # it ended: what follows finds out how
            finally:
                writer.close()


def json_page(status: int, content: object) -> Page:
    return Page(status, json.dumps(content).encode() + b"\n", "application/json")
