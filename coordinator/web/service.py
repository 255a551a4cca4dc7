"""The web as a process: the window on the log, the server, and its end."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from coordinator.web.app import build
from coordinator.web.settings import WebSettings
from coordinator.web.window import Window
from events.cluster import Cluster
from events.collector import collect_in_small_steps
from events.errors import DetentError
from events.structs import make_ready

LOG = logging.getLogger(__name__)
GRACE_S = 3
SWITCH_S = 0.0005  # a request does not wait long for the thread that follows the log


class AddressTaken(DetentError):
    """The address can't be listened on."""


class Server(uvicorn.Server):
    """Signals are the process's own affair: after an end in good order uvicorn would raise them once more."""

    def __init__(self, config: uvicorn.Config, ending: threading.Event) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._ending.set()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebService:
    def __init__(self, cluster: Cluster, settings: WebSettings) -> None:
        self._settings = settings
        guard = settings.guard
        self._window = Window(cluster, settings.lease_ms, operates=not guard.only_reads)
        ending = threading.Event()
        app = build(self._window, guard, settings.version, ending)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=30,
            lifespan="on",
        )
        self._server = Server(config, ending)
        self.address = ""

    def run(self) -> int:
        """Until a signal. Returns the exit code."""
        signal.signal(signal.SIGTERM, self._server.handle_exit)
        signal.signal(signal.SIGINT, self._server.handle_exit)
        make_ready()
        collect_in_small_steps()
        sys.setswitchinterval(SWITCH_S)
        listener = self._listen()
        host, port = listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        LOG.info("starts web address=%s page=http://%s/", self.address, self.address)
        self._window.start()
        try:
            self._server.run([listener])
        finally:
            self._window.stop()
            listener.close()
        LOG.info("stopped web")
        return 0

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
