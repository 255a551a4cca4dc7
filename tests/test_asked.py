"""What signals ask for."""

from __future__ import annotations

import signal
import threading
import time

from events.asked import Asked
from tests.logs import until


def test_it_is_asked_once_and_for_all() -> None:
    asked = Asked()
    assert not asked.wait(0.001)
    assert not asked.is_set()
    asked.set()
    asked.set()
    assert asked.is_set()
    assert asked.wait(600)
    assert asked.wait(600)


def test_all_who_wait_are_woken() -> None:
    asked, woken = Asked(), list[bool]()
    threads = [threading.Thread(target=lambda: woken.append(asked.wait(600)), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    asked.set()
    until(lambda: woken == [True] * 3, "all to be woken")


def test_a_handler_may_set_it_wherever_the_waiting_thread_is() -> None:
    """Found by a `detent broker run` that did not hear Ctrl-C: an Event that is set while its own thread is within
    `wait` waits for a lock that this thread holds."""
    asked = Asked()
    before = signal.signal(signal.SIGALRM, lambda *_: asked.set())
    try:
        for _ in range(200):  # the signal comes at another step of it each time
            asked = Asked()
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            began = time.monotonic()
            while not asked.wait(0.0001):
                assert time.monotonic() - began < 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
