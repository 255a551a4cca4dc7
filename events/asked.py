"""Whether somebody has asked for something: an event that signal handlers may set.

`threading.Event` is not for that: a handler runs on the main thread between two of its steps, and where that thread is
just inside `wait` it holds the event's lock, so `set` waits for ever for a lock that its own thread holds.
"""

from __future__ import annotations

import os
import select
import weakref


class Asked:
    """Like `threading.Event`, without a lock. Once asked, always asked."""

    def __init__(self) -> None:
        self._asked = False
        self._read, self._write = os.pipe()  # what is written is never read: it wakes all who wait, now and later
        weakref.finalize(self, _close, self._read, self._write)

    def set(self) -> None:
        if not self._asked:
            self._asked = True
            os.write(self._write, b"!")

    def is_set(self) -> bool:
        return self._asked

    def wait(self, seconds: float) -> bool:
        """Whether it was asked for meanwhile, or before."""
        if not self._asked:
            waiting = select.poll()
            waiting.register(self._read, select.POLLIN)
            waiting.poll(seconds * 1000)
        return self._asked


def _close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)
