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
from urllib.parse import quote

CONNECTIONS = 16
PAGE = 50


def addresses(names: list[str], seed: int) -> Iterator[tuple[str, str]]:
    """Lists and jobs in turn: any page of the list, any job."""
    chance = random.Random(seed)
    while True:
        yield "list", f"/api/v1/jobs?limit={PAGE}&start={chance.randrange(max(1, len(names) - PAGE))}"
        yield "job", f"/api/v1/jobs/{quote(chance.choice(names), safe='')}"


class Connection:
    """One kept-alive connection, as plain as can be."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        self._writer.close()

    async def get(self, path: str) -> tuple[int, bytes]:
        self._writer.write(f"GET {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(head[9:12]), await self._reader.readexactly(length)


async def ask(host: str, port: int, rate: float, seconds: float, seed: int) -> dict[str, list[float]]:
    """Seconds to every answer, by what was asked."""
    connections = [Connection(host, port) for _ in range(CONNECTIONS)]
    for connection in connections:
        await connection.open()
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
