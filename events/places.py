"""A directory of its own for each process on a machine, the same again after a restart: the first of `0`, `1`, …
that no living process holds. What it left there is found again; two processes never share one."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

MOST = 1000


class Place:
    """Held until the process ends, or `release`."""

    def __init__(self, base: Path) -> None:
        """Raises OSError when the directory can't be made."""
        for number in range(MOST):
            path = base / str(number)
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self.path, self._lock = path, lock
            return
        raise OSError(f"{MOST} processes hold directories in {base}")

    def release(self) -> None:
        os.close(self._lock)
