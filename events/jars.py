"""Java libraries by exact name and sum: fetched once, checked every time, kept in the user's cache.

A list file names every jar: `<sha256>  organisation:name:version`, nothing left to resolve, under a first
line `# <title>`. The jars of a list live in `<cache>/detent/jars/<digest of the list>/`, where `<cache>` is
`DETENT_CACHE`, else `XDG_CACHE_HOME`, else `~/.cache`. A folder appears there whole and checked, or not at
all: it is filled under another name and renamed, by one process at a time.

It must never hand out a jar whose sum is not the listed one.

    python -m events.jars [--quiet] [--list FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from events.errors import DetentError
from events.ivy import fetch_with_ivy

KAFKA_JARS = Path(__file__).with_name("kafka.jars.sha256")
SPARK_JARS = Path(__file__).with_name("spark.jars.sha256")
LISTS = (KAFKA_JARS, SPARK_JARS)
LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+):([\w.-]+):([\w.-]+)")

# (title, coordinates, directory to fill, called with how many have come)
Fetch = Callable[[str, Sequence[str], Path, Callable[[int], None]], None]


@dataclass(eq=False)
class BadJarList(DetentError):
    """A list that can't be followed to the letter."""

    path: Path
    line: int
    reason: str

    def message(self) -> str:
        return (
            f"{self.path}, line {self.line}: {self.reason}. "
            "Each line should read '<sha256>  organisation:name:version', the first one '# <title>'."
        )


@dataclass(eq=False)
class WrongSum(DetentError):
    """What was fetched is not what the list names."""

    title: str
    jar: str
    expected: str
    got: str

    def message(self) -> str:
        return (
            f"{self.jar} of {self.title} was fetched with sha256 {self.got}, but the list says {self.expected}. "
            "It was thrown away. Something between here and the repository (a proxy, a mirror) changes what it "
            "delivers: fetch from another network or mirror. If the list is wrong, correct it."
        )


@dataclass(eq=False)
class CacheUnusable(DetentError):
    """The cache directory can't be written."""

    directory: Path
    reason: str

    def message(self) -> str:
        return (
            f"the cache directory {self.directory} can't be used: {self.reason}. "
            "Free or repair it, or set DETENT_CACHE to a directory you can write to."
        )


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a list."""

    sha256: str
    coordinate: str

    @property
    def file_name(self) -> str:
        _, name, version = self.coordinate.split(":")
        return f"{name}-{version}.jar"


@dataclass(frozen=True, slots=True)
class JarList:
    """A list of jars, complete: nothing is resolved beyond it."""

    title: str
    jars: tuple[Jar, ...]

    @property
    def digest(self) -> str:
        text = "\n".join(sorted(f"{jar.sha256} {jar.coordinate}" for jar in self.jars))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_list(path: Path) -> JarList:
    """Read a list file; a line that is not exactly right is refused."""
    try:
        head, *lines = path.read_text("utf-8").splitlines() or [""]
    except OSError as error:
        raise BadJarList(path, 1, f"it can't be read ({error.strerror})") from error
    if not head.startswith("# "):
        raise BadJarList(path, 1, "there is no title")
    jars: dict[str, Jar] = {}
    for number, line in enumerate(lines, start=2):
        match = LINE.fullmatch(line)
        if match is None:
            raise BadJarList(path, number, f"{line!r} is no jar")
        jar = Jar(match[1], ":".join(match.group(2, 3, 4)))
        if jar.file_name in jars:
            raise BadJarList(path, number, f"{jar.file_name} is there twice")
        jars[jar.file_name] = jar
    return JarList(head.removeprefix("# ").strip(), tuple(jars.values()))


def cache_directory() -> Path:
    """Where everything is kept that can be fetched or made again."""
    chosen = os.environ.get("DETENT_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else Path.home() / ".cache").absolute() / "detent"


def fetch_jars(path: Path = KAFKA_JARS, *, fetch: Fetch = fetch_with_ivy) -> Path:
    """The directory with exactly the jars of the list. Downloads only when they are not there or damaged."""
    listing = read_list(path)
    target = cache_directory() / "jars" / listing.digest
    if _is_good(listing, target):
        return target
    progress = Progress(listing.title, len(listing.jars), sys.stderr)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target.with_name(f"{listing.digest}.lock"), progress):
            if not _is_good(listing, target):  # another process may have been quicker
                _replace(listing, target, fetch, progress)
    except OSError as error:
        raise CacheUnusable(target.parent, str(error)) from error
    finally:
        progress.end()
    return target


def find_damage(listing: JarList, directory: Path) -> Iterator[tuple[str, str, str]]:
    """(file, listed sum, real sum) of everything in the directory that is not as listed."""
    there = {entry.name for entry in directory.iterdir()}
    for jar in listing.jars:
        got = _sum_of(directory / jar.file_name) if jar.file_name in there else "nothing"
        if got != jar.sha256:
            yield jar.file_name, jar.sha256, got
    for stranger in sorted(there - {jar.file_name for jar in listing.jars}):
        yield stranger, "nothing", "a file that is not on the list"


def _is_good(listing: JarList, directory: Path) -> bool:
    try:
        return next(find_damage(listing, directory), None) is None
    except OSError:  # not there, or not usable: filling it will tell
        return False


def _sum_of(path: Path) -> str:
    with path.open("rb") as jar:
        return hashlib.file_digest(jar, "sha256").hexdigest()


def _replace(listing: JarList, target: Path, fetch: Fetch, progress: Progress) -> None:
    """Fill the target anew. The caller holds the list's lock, so leftovers are nobody's."""
    for leftover in target.parent.glob(f"{target.name}.*.part"):
        shutil.rmtree(leftover)
    if target.is_dir():
        name, expected, got = next(find_damage(listing, target))
        progress.say(f"{target / name} is damaged (sha256 {expected} was expected, {got} found): fetching again")
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", suffix=".part", dir=target.parent) as part:
        fresh = Path(part) / "fresh"
        fresh.mkdir()
        progress.came(0)
        fetch(listing.title, [jar.coordinate for jar in listing.jars], fresh, progress.came)
        shutil.rmtree(fresh / "ivy", ignore_errors=True)
        for name, expected, got in find_damage(listing, fresh):
            raise WrongSum(listing.title, name, expected, got)
        if target.is_dir():
            target.rename(Path(part) / "damaged")
            for made_from_it in target.parent.glob(f"{target.name}.*.jsa"):  # class archives of the old files
                made_from_it.unlink()
        fresh.rename(target)


@contextlib.contextmanager
def _only_one(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file; the system frees it should this process die."""
    with lock.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another process is fetching it: waiting")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


class Progress:
    """One line that is rewritten on a terminal; a few plain lines anywhere else."""

    def __init__(self, title: str, total: int, stream: TextIO) -> None:
        self._title = title
        self._total = total
        self._stream = stream
        self._live = stream.isatty()
        self._shown = -1
        self._open_line = False

    def came(self, count: int) -> None:
        """So many jars have come."""
        worth_a_line = self._live or count in (0, self._total) or count >= self._shown + self._total / 4
        if count == self._shown or not worth_a_line:
            return
        self._shown = count
        text = f"fetching {self._title}: {count} of {self._total} jars"
        self._stream.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        self._stream.flush()
        self._open_line = self._live

    def say(self, text: str) -> None:
        """One line of its own."""
        self.end()
        self._stream.write(f"{self._title}: {text}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave the terminal at the start of a line."""
        if self._open_line:
            self._stream.write("\n")
            self._stream.flush()
            self._open_line = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch when needed, then print the directories."""
    parser = argparse.ArgumentParser(prog="python -m events.jars", description="Fetch the broker's and Spark's jars.")
    parser.add_argument("--quiet", action="store_true", help="do not print the directories")
    parser.add_argument("--list", type=Path, help="one list of jars (default: Kafka's, then Spark's)")
    options = parser.parse_args(arguments)
    try:
        directories = [fetch_jars(path) for path in ([options.list] if options.list else LISTS)]
    except DetentError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if not options.quiet:
        sys.stdout.writelines(f"{directory}\n" for directory in directories)
    return 0


if __name__ == "__main__":
    sys.exit(main())
