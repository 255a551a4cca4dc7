"""Which files a task of the source `files` reads, and in which order. No Spark here.

A file is dealt to a task by its name alone, so that it is one task's whatever else is there, now or later.

Bounded: the files that were there when the task first began, in the order of their names. The position names the last
one read, how many are left and a sum over their names, sizes and times: a file that is gone, changed or came back
otherwise is seen at once. Continuous: in the order of their times; the position has the time of the newest one read and
short sums of those read that are hardly older, so that a file that shows up late is read as well, and none twice.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

HIDDEN = (".", "_")
NULL = "__HIVE_DEFAULT_PARTITION__"


class File(NamedTuple):
    name: str  # relative to the source's path
    size: int
    time: int  # of its last change, ns

    @property
    def sum(self) -> str:
        return hashlib.blake2b(f"{self.name}\0{self.size}\0{self.time}".encode(), digest_size=6).hexdigest()


class Bounded(msgspec.Struct, frozen=True):
    """How far a bounded source is."""

    until: int  # newer files came after the start
    after: str = ""  # the last file read
    next: str = ""  # the one that follows
    left: int = 0
    sum: str = ""  # over those left
    part: int = 0  # of the next one, if it is read in parts: how many of them were


class Continuous(msgspec.Struct, frozen=True):
    """How far a continuous source is."""

    time: int = 0
    recent: tuple[str, ...] = ()
    partly: str = ""  # the sum of a file that is being read in parts
    part: int = 0  # how many of them were


class Listing:
    """A task's files below a path, or the one file that the path is."""

    def __init__(self, path: Path, pattern: str, share: int, shares: int) -> None:
        self.path, self._pattern, self._share, self._shares = path, pattern, share, shares

    @property
    def root(self) -> Path:
        return self.path.parent if self.path.is_file() else self.path

    def files(self) -> list[File]:
        return [file for file in self.all_files() if zlib.crc32(file.name.encode()) % self._shares == self._share]

    def all_files(self) -> Iterator[File]:
        if self.path.is_file():
            yield from _stat(self.path, self.path.name)
            return
        for parent, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(HIDDEN)]
            for name in names:
                if not name.startswith(HIDDEN) and fnmatch.fnmatch(name, self._pattern):
                    path = Path(parent) / name
                    yield from _stat(path, str(path.relative_to(self.path)))

    def unchanged(self, file: File) -> bool:
        return list(_stat(self.root / file.name, file.name)) == [file]


def _stat(path: Path, name: str) -> Iterator[File]:
    """Nothing for a file that goes just now."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    yield File(name, found.st_size, found.st_mtime_ns)


def values_in_the_name(name: str) -> dict[str, str | None]:
    """Of day=1/city=x/part.parquet, day and city."""
    pairs = [folder.partition("=") for folder in Path(name).parts[:-1]]
    return {key: None if value == NULL else unquote(value) for key, sign, value in pairs if sign}


# Bounded -------------------------------------------------------------------------------------------------------------


def first_of(files: Sequence[File]) -> Bounded:
    until = max([time.time_ns(), *(file.time for file in files)])
    return ahead(Bounded(until), sorted(files))


def ahead(position: Bounded, left: Sequence[File]) -> Bounded:
    """The position with these files, sorted, still to read."""
    total = hashlib.blake2b("".join(file.sum for file in left).encode(), digest_size=8).hexdigest()
    following = left[0].name if left else ""
    return Bounded(position.until, position.after, following, len(left), total, position.part)


def left_of(position: Bounded, files: Sequence[File]) -> list[File]:
    """What is there of what was left, sorted."""
    return sorted(file for file in files if file.time <= position.until and file.name > position.after)


def what_is_wrong(position: Bounded, left: Sequence[File]) -> str:
    """Empty when all that was left is there as it was; else what is there, as a clause."""
    if ahead(position, left) == position:
        return ""
    shown = ", ".join(file.name for file in left[:3]) + (", …" if len(left) > 3 else "")
    there = f"{len(left)} are there ({shown})" if left else "none is there"
    if position.next and position.next not in {file.name for file in left}:
        there = f"{position.next} is gone, {there}"
    elif len(left) == position.left:
        there += ", and not as they were"
    return f"of the {position.left} files that were left to read, {there}"


# Continuous ----------------------------------------------------------------------------------------------------------


def new_since(position: Continuous, files: Sequence[File], lateness_ns: int) -> list[File]:
    """What has not been read: one that has been in part, then the oldest first."""
    recent, oldest = set(position.recent), position.time - lateness_ns
    found = [file for file in files if file.time >= oldest and file.sum not in recent]
    return sorted(found, key=lambda file: (file.sum != position.partly, file.time, file.name))


def moved_on(position: Continuous, read: Sequence[File], files: Sequence[File], lateness_ns: int) -> Continuous:
    newest = max([position.time, *(file.time for file in read)])
    known = {*position.recent, *(file.sum for file in read)}
    recent = sorted(file.sum for file in files if file.sum in known and file.time >= newest - lateness_ns)
    return Continuous(newest, tuple(recent))
