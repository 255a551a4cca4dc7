"""The client for asyncio: the same calls, awaited. Each runs on a thread of its own while it waits for the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from detent.client import Client, Ended
from detent.jobs import Job
from events.asking import Answer


class AsyncClient:
    """As Client. It connects when it is entered: `async with AsyncClient("broker:9092") as client`."""

    def __init__(self, bootstrap_servers: str = "", **settings: Any) -> None:
        """The settings are those of Client."""
        self._make: Callable[[], Client] = lambda: Client(bootstrap_servers, **settings)
        self._client: Client | None = None

    async def __aenter__(self) -> Self:
        self._client = await asyncio.to_thread(self._make)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
            self._client = None

    @property
    def client(self) -> Client:
        if self._client is None:
            raise RuntimeError("an AsyncClient is used within `async with`")
        return self._client

    async def submit(self, job: Job | Path | str, *, name: str = "", command_id: str = "") -> Answer:
        return await asyncio.to_thread(self.client.submit, job, name=name, command_id=command_id)

    async def cancel(self, job: str, reason: str = "", *, command_id: str = "") -> Answer:
        return await asyncio.to_thread(self.client.cancel, job, reason, command_id=command_id)

    async def savepoint(self, job: str, name: str, *, stop: bool = False, command_id: str = "") -> Answer:
        return await asyncio.to_thread(self.client.savepoint, job, name, stop=stop, command_id=command_id)

    async def restore(
        self,
        job: str,
        savepoint: str = "",
        *,
        specification: Job | Path | str | None = None,
        elsewhere: Mapping[tuple[int, int], bytes] | None = None,
        command_id: str = "",
    ) -> Answer:
        return await asyncio.to_thread(
            self.client.restore,
            job,
            savepoint,
            specification=specification,
            elsewhere=elsewhere,
            command_id=command_id,
        )

    async def stop(self, job: str, reason: str = "", *, command_id: str = "") -> Answer:
        return await asyncio.to_thread(self.client.stop, job, reason, command_id=command_id)

    async def pause(self, job: str, reason: str = "", *, command_id: str = "") -> Answer:
        return await asyncio.to_thread(self.client.pause, job, reason, command_id=command_id)

    async def resume(self, job: str, reason: str = "", *, command_id: str = "") -> Answer:
        return await asyncio.to_thread(self.client.resume, job, reason, command_id=command_id)

    async def repair(self, job: str, entity: str, to: str, reason: str, *, command_id: str = "") -> Answer:
        return await asyncio.to_thread(self.client.repair, job, entity, to, reason, command_id=command_id)

    async def outcome(self, job: str, command_id: str) -> Answer | None:
        return await asyncio.to_thread(self.client.outcome, job, command_id)

    async def wait(self, job: str, *, incarnation: int = 0, timeout_s: float | None = None) -> Ended:
        return await asyncio.to_thread(self.client.wait, job, incarnation=incarnation, timeout_s=timeout_s)
