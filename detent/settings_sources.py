"""Where values come from: the file with its lines, the environment, the flags. Names and values as they were given.

What a name means and whether a value is allowed is `detent.settings_load`'s business. Only what can't be understood
as name and value, or is said twice, is a problem here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from detent.settings import BY_NAME, SECTIONS, TABLES
from events.errors import DetentError

CONFIG_VARIABLE = "DETENT_CONFIG"
DEFAULT_FILE = Path("detent.toml")
PREFIX = "DETENT_"
MAX_BYTES = 1024 * 1024
VARIABLES = {setting.variable: setting for setting in BY_NAME.values()}
# What somebody writes who has not heard of the two underscores.
MISSPELLED = {PREFIX + name.upper().replace(".", "_"): setting for name, setting in BY_NAME.items()}


class Given(NamedTuple):
    """A value, as somebody gave it, and where. A `text` is read as the setting's type; other values have one."""

    name: str
    value: object
    origin: str
    text: bool = True


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the settings: where it was said, of which setting, and what to do."""

    origin: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.name} {self.reason}"


@dataclass(eq=False)
class SettingsError(DetentError):
    """Settings that can't be used, with all that is wrong with them."""

    problems: tuple[Problem, ...]

    def message(self) -> str:
        if len(self.problems) == 1:
            return f"the settings can't be used. {self.problems[0]}"
        return "the settings can't be used:" + "".join(f"\n  - {problem}" for problem in self.problems)


@dataclass(eq=False)
class UnreadableFile(DetentError):
    """A file that is named and can't be used."""

    path: Path
    named_by: str
    reason: str

    def message(self) -> str:
        return f"the file {self.path} (named by {self.named_by}) can't be used: {self.reason}"


def read_text(path: Path, named_by: str) -> str:
    """A small text file. Raises UnreadableFile."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UnreadableFile(path, named_by, f"it has more than {MAX_BYTES:,} bytes")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(path, named_by, f"it is not UTF-8 text (byte {error.start})") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableFile(path, named_by, reason or type(error).__name__) from error


def choose_file(config: Path | None, environ: Mapping[str, str]) -> tuple[Path, str] | None:
    """The file to read and who names it; none where nobody does and there is no detent.toml here."""
    if config is not None:
        return config, "--config"
    if named := environ.get(CONFIG_VARIABLE):
        return Path(named), CONFIG_VARIABLE
    return (DEFAULT_FILE, "its default") if DEFAULT_FILE.exists() else None


def from_file(path: Path, named_by: str) -> list[Given | Problem]:
    """What a TOML file says. Raises UnreadableFile."""
    content = read_text(path, named_by).replace("\r\n", "\n")
    try:
        document = tomllib.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(path, named_by, f"it is not TOML: {error}") from error
    lines = lines_of(content)
    given = [
        Given(".".join(keys), value, f"{path}:{lines[keys]}", text=False)
        for keys, value in _leaves(document, ())
        if value != {} or ".".join(keys) not in SECTIONS  # a section in which nothing is set
    ]
    return _each_once(given)


def _leaves(value: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values of a document, with the keys that lead to them. An empty table is one as well."""
    if not isinstance(value, dict) or (not value and keys):
        yield keys, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, (*keys, key))


def lines_of(content: str) -> dict[tuple[str, ...], int]:
    """The line on which each value of a (valid) TOML document begins.

    Python's parser does not tell. But a statement ends at the first line end up to which it parses, so the document
    can be cut into its statements, and each, parsed by itself, tells what it sets."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    statement, begun = "", 0
    for number, line in enumerate(content.split("\n"), 1):
        begun = begun if statement else number
        statement += line + "\n"
        try:
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # it goes on in the next line
        if statement.lstrip().startswith("["):
            table = _header(parsed)
            found.setdefault(table, begun)
        else:
            for keys, _ in _leaves(parsed, ()):
                found.setdefault((*table, *keys), begun)
        statement = ""
    return found


def _header(parsed: dict[str, Any]) -> tuple[str, ...]:
    """The keys of a table from its header alone, `[a.b]` or `[[a.b]]`."""
    keys: tuple[str, ...] = ()
    inner: Any = parsed
    while isinstance(inner, dict) and inner:
        ((key, inner),) = inner.items()
        keys = (*keys, key)
    return keys


def from_environment(environ: Mapping[str, str]) -> list[Given | Problem]:
    """What variables say. An empty one counts as not set.

    Only names with two underscores are ours: others, such as DETENT_SERVICE_HOST, are put there by the system."""
    given, wrong = [], []
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or not value:
            continue
        if variable in VARIABLES:
            given.append(Given(VARIABLES[variable].name, value, variable))
        elif "__" in variable:
            given.append(Given(name_of(variable), value, variable))
        elif variable in MISSPELLED and not value.startswith(("tcp://", "udp://")):  # Kubernetes sets those
            meant = MISSPELLED[variable]
            wrong.append(Problem(variable, meant.name, f"is spelled {meant.variable} in the environment"))
    return [*wrong, *_each_once(given)]


def name_of(variable: str) -> str:
    """DETENT_KAFKA__SECURITY__PROTOCOL is kafka.security.protocol. What a table's entry is called is taken as it is
    written if it has small letters: DETENT_WORKER__SPARK__CONF__spark__eventLog__enabled."""
    name = variable.removeprefix(PREFIX).replace("__", ".")
    for table in TABLES:
        if name.lower().startswith(table.name) and name[len(table.name) :] != name[len(table.name) :].upper():
            return table.name + name[len(table.name) :]
    return name.lower()


def from_flags(flags: Sequence[str | Given]) -> list[Given | Problem]:
    """What `--set name=value` and the flags of a command say; the last one counts."""
    found: list[Given | Problem] = []
    for said in flags:
        if isinstance(said, Given):
            found.append(said)
        elif is_assignment(said):
            name, _, value = said.partition("=")
            found.append(Given(name.strip(), value.strip(), "--set"))
        else:
            found.append(Problem("--set", repr(said), "is not NAME=VALUE, such as coordinator.detection_ms=300"))
    return found


def is_assignment(said: str) -> bool:
    name, separator, _ = said.partition("=")
    return bool(separator and name.strip())


def flag(option: str, name: str, value: object) -> list[Given]:
    """A command's own option for a setting, for `load`; nothing where it was not used."""
    return [] if value is None else [Given(name, str(value), option)]


def _each_once(given: list[Given]) -> list[Given | Problem]:
    """One source says a thing once: which of two would count, nobody could tell."""
    first: dict[str, Given] = {}
    wrong = [
        Problem(it.origin, it.name, f"is set by {before.origin} already; leave one of them out")
        for it in given
        if (before := first.setdefault(it.name, it)) is not it
    ]
    return [*wrong, *first.values()]
