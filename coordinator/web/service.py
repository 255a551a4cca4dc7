"""The web as a process: the window on the log, the server, and its end."""

from __future__ import annotations

import logging
import socket
import threading
from types import FrameType

import uvicorn

from coordinator.web.app import build
from coordinator.web.settings import WebSettings
from coordinator.web.window import Window
from events.cluster import Cluster
from events.errors import DetentError

LOG = logging.getLogger(__name__)
GRACE_S = 3


class AddressTaken(DetentError):
    """The address can't be listened on."""


class WebService:
    def __init__(self, cluster: Cluster, settings: WebSettings) -> None:
        self._settings = settings
        guard = settings.guard
        self._window = Window(cluster, settings.lease_ms, operates=not guard.only_reads)
        app = build(self._window, guard, settings.version)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=30,
            lifespan="on",
        )
        self._server = uvicorn.Server(config)
        self.address = ""
        self.listens = threading.Event()

    def run(self) -> int:
        """Until a signal. Returns the exit code."""
        listener = self._listen()
        host, port = listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.listens.set()
        LOG.info("starts web address=%s page=http://%s/", self.address, self.address)
        self._window.start()
        try:
            self._server.run([listener])
        finally:
            self._window.stop()
            listener.close()
        LOG.info("stopped web")
        return 0

    def stop(self) -> None:
        self._server.should_exit = True

    def signalled(self, number: int, frame: FrameType | None) -> None:
        self._server.handle_exit(number, frame)

    def _listen(self) -> socket.socket:
        host, port = self._settings.guard.host, self._settings.port
        try:
            family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind, proto)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)
        except OSError as error:
            reason = f"the web page can't listen on {host}:{port}: {error}. Choose another web.host or web.port."
            raise AddressTaken(reason) from error
        return listener
