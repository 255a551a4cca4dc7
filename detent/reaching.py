"""Reaching a Detent that runs, for commands that only make sense if one does: nothing is started for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from detent.client import Client
from detent.connecting import connected
from detent.settings_load import Loaded
from events import embedded
from events.asking import NoDetent
from events.broker_state import broker_directory, is_guarded
from events.cluster import Cluster
from events.errors import DetentError

START_S = 10.0


@dataclass(eq=False)
class NothingRuns(DetentError):
    """No broker is named, and the embedded one does not run."""

    state_dir: str

    def message(self) -> str:
        return (
            f"nothing runs in {self.state_dir}, and no brokers are named. Start a Detent here with `detent up`, or "
            "name the brokers of yours with --bootstrap-servers (or kafka.bootstrap_servers)."
        )


@contextmanager
def reached(loaded: Loaded, *, by: str = "", patience_s: float = 30.0) -> Iterator[Client]:
    """A client of the Detent that the settings name."""
    settings = loaded.settings
    if not settings.kafka.bootstrap_servers and not _runs(settings.state_dir):
        raise NothingRuns(settings.state_dir)
    with connected(loaded) as cluster, _client(cluster, by, patience_s) as client:
        yield client


def _runs(state_dir: str) -> bool:
    """Whether there is an embedded broker, or one that starts just now."""
    return embedded.status(state_dir) is not None or is_guarded(broker_directory(state_dir))


def _client(cluster: Cluster, by: str, patience_s: float) -> Client:
    """A Detent that has only just been started makes its topics any moment."""
    deadline = time.monotonic() + min(START_S, patience_s)
    while True:
        try:
            return Client.on(cluster, by=by, patience_s=patience_s)
        except NoDetent:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
