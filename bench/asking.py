"""Asks a web server at a steady rate, as many people would: each request has its time, whether those before it are
answered or not, and waits for its turn count. A process of its own, so that nothing else in it makes it slow.

    python -m bench.asking --address 127.0.0.1:8460 --jobs 10000 --rate 200 --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from typing import cast
from urllib.parse import quote

CONNECTIONS = 16
PAGE = 50
MOST_BYTES = 4 * 1024 * 1024  # of an answer


def addresses(names: list[str], seed: int) -> Iterator[tuple[str, str]]:
    """Lists and jobs in turn: any page of the list, any job."""
    chance = random.Random(seed)
    while True:
        yield "list", f"/api/v1/jobs?limit={PAGE}&start={chance.randrange(max(1, len(names) - PAGE))}"
        yield "job", f"/api/v1/jobs/{quote(chance.choice(names), safe='')}"


class Connection(asyncio.BufferedProtocol):
    """One kept-alive connection, as plain as can be: of people who ask from elsewhere nothing should be felt here."""

    def __init__(self, address: str) -> None:
        self._asks = f" HTTP/1.1\r\nhost: {address}\r\n\r\n"
        self._buffer, self._filled, self._wanted = bytearray(MOST_BYTES), 0, 0
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server ended the connection"))

    def close(self) -> None:
        self._transport.close()

    async def get(self, path: str) -> tuple[int, bytes]:
        self._filled = self._wanted = 0
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(f"GET {path}{self._asks}".encode())
        return await self._answer

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio's signature
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if not self._wanted and (end := self._buffer.find(b"\r\n\r\n", 0, self._filled)) >= 0:
            head = self._buffer[:end].lower().split(b"\r\n")
            length = next(int(line[15:]) for line in head if line.startswith(b"content-length:"))
            self._begins, self._wanted = end + 4, end + 4 + length
        if self._wanted and self._filled >= self._wanted and self._answer is not None:
            self._answer.set_result((int(self._buffer[9:12]), bytes(self._buffer[self._begins : self._wanted])))


async def ask(host: str, port: int, rate: float, seconds: float, seed: int) -> dict[str, list[float]]:
    """Seconds to every answer, by what was asked."""
    loop, address = asyncio.get_running_loop(), f"{host}:{port}"
    made = [await loop.create_connection(lambda: Connection(address), host, port) for _ in range(CONNECTIONS)]
    connections = [connection for _, connection in made]
    names = await all_names(connections[0])
    times: dict[str, list[float]] = {"list": [], "job": []}
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)

    async def one(kind: str, path: str, due: float) -> None:
        connection = await free.get()
        status, body = await connection.get(path)
        times[kind].append(time.perf_counter() - due)
        free.put_nowait(connection)
        if status != 200:
            raise SystemExit(f"{path}: {status} {body[:200]!r}")

    print("begins", flush=True)
    began, asked, tasks = time.perf_counter(), addresses(names, seed), []
    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        tasks.append(asyncio.create_task(one(*next(asked), due)))
    await asyncio.gather(*tasks)
    for connection in connections:
        connection.close()
    return times


async def all_names(connection: Connection) -> list[str]:
    names: list[str] = []
    while True:
        _, body = await connection.get(f"/api/v1/jobs?limit=1000&start={len(names)}")
        page = json.loads(body)
        names += [each["id"] for each in page["items"]]
        if not page["items"] or len(names) >= page["total"]:
            return names


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--address", required=True)
    options.add_argument("--rate", type=float, default=200.0)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    host, _, port = arguments.address.rpartition(":")
    times = asyncio.run(ask(host, int(port), arguments.rate, arguments.seconds, arguments.seed))
    print(json.dumps(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
