"""The connections by which coordinators notice each other's death at once: one held to everyone who is heard. It runs
beside the pages of the process (events/front.py), on the same event loop. It decides nothing.
"""

from __future__ import annotations

import asyncio
import logging

from coordinator.peers import Peers

LOG = logging.getLogger(__name__)
LOOK_EVERY_S = 0.05
CONNECT_S = 1.0
AGAIN_S = 0.005


class PeerWatch:
    def __init__(self) -> None:
        self._peers: Peers | None = None
        self._watching: dict[str, asyncio.Task[None]] = {}

    def watch(self, peers: Peers) -> None:
        self._peers = peers

    async def look(self) -> None:
        """Hold a connection to everyone who is heard."""
        while True:
            if self._peers is not None:
                for instance, address in self._peers.addresses().items():
                    if instance not in self._watching:
                        self._watching[instance] = asyncio.create_task(self._hold(self._peers, instance, address))
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
                # A process that is just dying resets what reaches it before its port is closed: the next try tells.
                await asyncio.sleep(AGAIN_S if isinstance(error, ConnectionResetError) else CONNECT_S)
                if held and instance in peers.addresses():
                    continue
                return
            try:
                writer.write(b"GET /watch HTTP/1.1\r\nhost: detent\r\n\r\n")
                held = True
                await reader.read()
            except OSError:
                pass  # it ended: what follows finds out how
            finally:
                writer.close()
