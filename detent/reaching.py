"""Reaching a Detent that runs, for commands that only make sense if one does: nothing is started for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from detent.client import Client
from detent.connecting import connected
from detent.settings_load import Loaded
from events import embedded
from events.errors import DetentError


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
    if not settings.kafka.bootstrap_servers and embedded.status(settings.state_dir) is None:
        raise NothingRuns(settings.state_dir)
    with connected(loaded) as cluster, Client.on(cluster, by=by, patience_s=patience_s) as client:
        yield client
