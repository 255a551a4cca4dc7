"""Ties a process to the one that started it: when that is gone, however it went, this one ends in good order.

`tied(environment)` is what the starter gives; `tie_if_asked()` is what the started one does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping

VARIABLE = "DETENT_TIED_TO"
LOOK_S = 0.5


def tied(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, VARIABLE: str(os.getpid())}


def tie_if_asked() -> None:
    starter = os.environ.pop(VARIABLE, "")  # popped: what this process starts is its own affair
    if starter.isdigit():
        threading.Thread(target=_watch, args=(int(starter),), name="tether", daemon=True).start()


def _watch(starter: int) -> None:
    """An orphan is given another parent, everywhere."""
    while os.getppid() == starter:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
