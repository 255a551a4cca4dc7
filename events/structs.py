"""Makes typed values safe to read in several threads.

msgspec gets a type ready when it first reads one, and runs Python code meanwhile: a second thread that reads the same
type then takes a half-made description, and the process dies of a segmentation fault. So whatever starts threads lets
every type be made ready before, once, in one thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


def make_ready(kind: type[msgspec.Struct] = msgspec.Struct) -> int:
    """Every type of this kind that is imported by now. Returns how many there are."""
    count = 0
    for each in dict.fromkeys(_below(kind)):
        try:
            msgspec.json.Decoder(each)  # what it makes ready stays with the type
        except (TypeError, NameError):
            continue  # a base of others, or a type that is never read
        count += 1
    return count


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
