"""The time that decisions are given: milliseconds since 1970, but never jumping. Leases and deadlines are counted in
it, so a clock that somebody sets must not make a worker look dead. What a jump changed is made up for slowly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SLEW = 0.01  # how fast it follows the wall clock: ten milliseconds a second


def since_boot_s() -> float:
    """A steady clock that goes on while the machine sleeps, where there is one: whoever holds a lease needs it."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class SteadyClock:
    """Safe for several threads."""

    def __init__(self, wall_s: Callable[[], float] = time.time, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._wall_s, self._steady_s = wall_s, steady_s
        self._lock = threading.Lock()
        self._at = steady_s()
        self._ahead = wall_s() - self._at

    def now_ms(self) -> int:
        with self._lock:
            at = self._steady_s()
            off = self._wall_s() - at - self._ahead
            most = SLEW * (at - self._at)
            self._ahead += max(-most, min(most, off))
            self._at = at
            return int((at + self._ahead) * 1000)

    def off_ms(self) -> int:
        """How far it is behind the wall clock just now."""
        with self._lock:
            return int((self._wall_s() - self._steady_s() - self._ahead) * 1000)
