"""What a process shows over HTTP: whether it lives, whether it is ready, its metrics. One thread with an event loop.
It decides nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass

LOG = logging.getLogger(__name__)
REQUEST_BYTES = 8192
REQUEST_S = 5.0
ACCEPT_STEPS = 5


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


def json_page(status: int, content: object) -> Page:
    return Page(status, json.dumps(content).encode() + b"\n", "application/json")


class Front:
    """Besides its pages it has `/watch`, a connection that is held until either side ends: the end tells of a death
    within a millisecond."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: dict[str, Callable[[], Page]],
        beside: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """`beside` runs on the same event loop for as long as the front does."""
        self._host, self._port, self._pages, self._beside = host, port, pages, beside
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="front", daemon=True)
        self._ready = threading.Event()
        self._error: OSError | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self.address = ""

    def start(self) -> None:
        """Raises OSError when the address can't be had."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(
                asyncio.start_server(self._accept, self._host, self._port, limit=REQUEST_BYTES)
            )
        except OSError as error:
            self._error = error
            self._loop.close()
            self._ready.set()
            return
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._ready.set()
        if self._beside is not None:
            self._loop.create_task(self._beside())
        self._loop.run_forever()
        self._loop.run_until_complete(end_all(server, self._connections))
        self._loop.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        self._loop.create_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), REQUEST_S)  # until the other side has taken everything
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
            LOG.debug("a request came to nothing: %r", error)
        except asyncio.CancelledError:
            LOG.debug("a connection ends with this process")
        finally:
            self._connections.discard(writer)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_S)
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        path = parts[1].split("?")[0] if len(parts) == 3 and parts[0] in ("GET", "HEAD") else ""
        if path == "/watch":
            await reader.read()
            return
        page = self._page(path)
        writer.write(
            f"HTTP/1.1 {page.status} {'OK' if page.status == 200 else 'Not OK'}\r\ncontent-type: {page.kind}\r\n"
            f"content-length: {len(page.body)}\r\nconnection: close\r\n\r\n".encode()
        )
        writer.write(page.body if parts[0] == "GET" else b"")

    def _page(self, path: str) -> Page:
        page = self._pages.get(path)
        if page is None:
            return Page(404, f"there are {', '.join(sorted(self._pages))}\n".encode())
        return page()


async def end_all(server: asyncio.Server, connections: Collection[asyncio.StreamWriter]) -> None:
    """End a server, the tasks of its loop and their connections. One that was just accepted takes some steps until it
    is a connection, which a closed server would not let it, and a task that has not begun does not close its own: so
    accepting ends first, then the server, and connections are closed here."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(ACCEPT_STEPS):
        await asyncio.sleep(0)
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for writer in list(connections):
        writer.transport.abort()
    await asyncio.sleep(0)
