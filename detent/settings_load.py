"""From file, environment and flags to checked settings, each with its origin.

Flags win over the environment, the environment over the file, the file over the defaults. Everything that is wrong is
told at once. Apart from the file, and the files and variables that values refer to, it touches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import msgspec

from detent.settings import (
    ALWAYS_OURS,
    BY_NAME,
    CATALOGUE,
    PROPERTY,
    SECTIONS,
    TABLES,
    Setting,
    Settings,
    parse_shards,
    table_of,
)
from detent.settings_sources import (
    PREFIX,
    Given,
    Problem,
    SettingsError,
    UnreadableFile,
    choose_file,
    from_environment,
    from_file,
    from_flags,
    read_text,
)
from events.masking import MASK, shown_entry, shown_text

DEFAULT = "default"
REFERENCE = re.compile(r"\$\{(\w+):([^}]*)\}")
LONGEST_SHOWN = 80
ENTRY_MAY_BE = "text, a number, true or false"


@dataclass(frozen=True)
class Loaded:
    """The settings, and for each, by its name, where its value came from."""

    settings: Settings
    origin: Mapping[str, str]
    # The texts that held references, as they were written.
    written: Mapping[str, str] = field(default_factory=dict, repr=False)

    def is_given(self, name: str) -> bool:
        return self.origin.get(name, DEFAULT) != DEFAULT

    def values(self) -> dict[str, Any]:
        """All settings by name, with the entries of tables, as they may be shown."""
        shown: dict[str, Any] = {}
        for setting in CATALOGUE:
            value: Any = self.settings
            for key in setting.path:
                value = getattr(value, key)
            if setting.is_table:
                shown |= {setting.name + entry: self._shown_entry(setting, entry, value[entry]) for entry in value}
            else:
                shown[setting.name] = shown_text(value) if isinstance(value, str) else value
        return shown

    def _shown_entry(self, table: Setting, entry: str, value: str) -> str:
        """A reference tells where a secret is, and nothing of it: so it is shown, where it is all that was written."""
        written = self.written.get(table.name + entry)
        if written is None:
            return shown_entry(entry, value)
        return written if not REFERENCE.sub("", written) else shown_entry(entry, written)


class Unfit(Exception):
    """A value that its setting can't have, and why. Becomes a Problem."""


def load(config: Path | None, environ: Mapping[str, str], flags: Sequence[str | Given]) -> Loaded:
    """The settings that hold here. Raises SettingsError or UnreadableFile."""
    found = from_file(*chosen) if (chosen := choose_file(config, environ)) else []
    found += [*from_environment(environ), *from_flags(flags)]
    problems = [it for it in found if isinstance(it, Problem)]
    problems += [unknown for it in found if isinstance(it, Given) and (unknown := _unknown(it))]
    if problems:
        raise SettingsError(tuple(problems))
    last = {it.name: it for it in found if isinstance(it, Given)}
    settings, written = _checked(last, environ)
    origin = dict.fromkeys(BY_NAME, DEFAULT) | {name: it.origin for name, it in last.items()}
    _agree(settings, origin)
    return Loaded(settings, origin, written)


def _checked(given: Mapping[str, Given], environ: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    document: dict[str, Any] = {}
    written: dict[str, str] = {}
    problems = []
    for name, it in given.items():
        try:
            resolved = _resolved(it, environ)
            value = _entry(resolved.value) if table_of_given(name) else _typed(BY_NAME[name], resolved, it)
        except Unfit as unfit:
            problems.append(Problem(it.origin, name, str(unfit)))
            continue
        if resolved is not it:
            written[name] = str(it.value)
        _put(document, name, value)
    if problems:
        raise SettingsError(tuple(problems))
    return msgspec.convert(document, Settings), written


def table_of_given(name: str) -> Setting | None:
    """The table whose entry a name is; none where it is a setting of its own."""
    return None if name in BY_NAME else table_of(name)


def _put(document: dict[str, Any], name: str, value: object) -> None:
    table = table_of_given(name)
    *sections, last = (*table.path, name.removeprefix(table.name)) if table else BY_NAME[name].path
    for section in sections:
        document = document.setdefault(section, {})
    document[last] = value


# Names ----------------------------------------------------------------------------------------------------------------


def _unknown(given: Given) -> Problem | None:
    """What is wrong with a name, if anything, and which one was probably meant."""
    name = given.name
    if name in BY_NAME:
        return None
    table = table_of(name)
    entry = name.removeprefix(table.name) if table else ""
    if table is not None and table.path[-1] != "properties":
        return None
    if table is not None and entry in ALWAYS_OURS:
        return Problem(given.origin, name, f"can't be set: {ALWAYS_OURS[entry]}")
    if table is not None and PROPERTY.fullmatch(entry):
        return None
    if name in SECTIONS:
        return Problem(given.origin, name, f"is a section; its settings are {name}.… , or stand below [{name}]")
    meant = _closest(name)
    if meant is None and table is not None and PROPERTY.fullmatch(entry.lower().replace("_", ".")):
        meant = table.name + entry.lower().replace("_", ".")
    hint = f"; did you mean {_spelled(meant, given)}?" if meant else ""
    return Problem(given.origin, name, f"is no setting{hint or '; detent config show lists them all'}")


def _closest(name: str) -> str | None:
    """The known name that is most like it: by its letters, in another section, or as an entry of a table."""
    for meant in get_close_matches(name, BY_NAME, n=1, cutoff=0.75):
        return meant
    for known in BY_NAME:
        if known.rpartition(".")[2] == name.rpartition(".")[2]:
            return known
    tables = []
    for table in TABLES:
        depth = table.name.count(".")
        entry = name.split(".", depth)[-1]
        if name.count(".") >= depth and (table.name != "kafka." or PROPERTY.fullmatch(entry)):
            tables.append(table.name + entry)
    return next(iter(get_close_matches(name, tables, n=1, cutoff=0.75)), None)


def _spelled(name: str, given: Given) -> str:
    """A name as the source would spell it."""
    if not given.origin.startswith(PREFIX):
        return name
    return BY_NAME[name].variable if name in BY_NAME else PREFIX + name.upper().replace(".", "__")


# Values ---------------------------------------------------------------------------------------------------------------


def _resolved(given: Given, environ: Mapping[str, str]) -> Given:
    """The value with its references replaced; the very same where it has none."""
    value = given.value
    if not isinstance(value, str):
        return given
    of_spark = given.name.startswith("worker.spark.conf.")

    def replaced(found: re.Match[str]) -> str:
        kind, target = found.groups()
        if kind not in ("env", "file"):
            if of_spark:  # Spark has references of its own
                return found[0]
            raise Unfit(f"refers to {found[0]}; a reference is ${{env:NAME}} or ${{file:/path}}")
        resolved = _variable(target, environ) if kind == "env" else _content(target, given)
        if REFERENCE.search(resolved):
            raise Unfit(f"refers to {found[0]}, which holds a reference again; only one step is followed")
        return resolved

    text = REFERENCE.sub(replaced, value)
    return given if text == value else given._replace(value=text, text=True)


def _variable(name: str, environ: Mapping[str, str]) -> str:
    if not (value := environ.get(name)):
        raise Unfit(f"refers to ${{env:{name}}}, but the variable {name} is not set or is empty; set it")
    return value


def _content(path: str, given: Given) -> str:
    try:
        return read_text(Path(path), given.origin).rstrip("\r\n")
    except UnreadableFile as error:
        raise Unfit(f"refers to ${{file:{path}}}, but that file can't be read: {error.reason}") from error


def _entry(value: object) -> str:
    """An entry of a table, as text: that is what Kafka's client, Spark and labels take."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise Unfit(f"is of the type {type(value).__name__}; it may be {ENTRY_MAY_BE}")  # not the value: a secret?
    _check_text(value)
    return value


def _check_text(value: str) -> None:
    if value == MASK:
        raise Unfit(f"is {MASK}, which only stands for a secret where settings are shown; write the value itself")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Unfit("is not text: it has a zero byte or is not UTF-8")


def _typed(setting: Setting, given: Given, written: Given) -> object:
    """The value in the setting's type, within its bounds. Errors show what was written, not what it refers to."""
    value = _from_text(setting, given.value) if given.text and isinstance(given.value, str) else given.value
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, str):
            _check_text(part)
    refused = Unfit(f"is {_shown(written.value)}; it may be {setting.may_be}")
    try:
        fit: object = msgspec.convert(value, Annotated[setting.kind, setting.meta])
        if parse := setting.extra.get("parse"):
            parse(fit)
    except msgspec.ValidationError:
        raise refused from None
    except ValueError as error:
        raise (Unfit(f"{refused}; {error}") if given is written else refused) from None
    if isinstance(fit, list) and not all(re.fullmatch(setting.extra["each"], part) for part in fit):
        raise refused
    return fit


def _from_text(setting: Setting, text: str) -> object:
    if setting.is_list:
        return [part.strip() for part in text.split(",") if part.strip()]
    if setting.kind is int and re.fullmatch(r"[+-]?\d{1,30}(_\d{1,3})*", text.strip(), re.ASCII):
        return int(text)
    return text


def _shown(value: object) -> str:
    """A value for an error: short, and with nothing that is for few eyes."""
    shown = repr(shown_text(value)) if isinstance(value, str) else repr(value)
    return shown if len(shown) <= LONGEST_SHOWN else shown[:LONGEST_SHOWN] + "…"


# Values that must agree -----------------------------------------------------------------------------------------------

AT_LEAST_TWICE = (
    ("coordinator.detection_ms", "coordinator.beat_ms", "one beat that is late must not be taken for a death"),
    ("worker.lease_ms", "worker.heartbeat_ms", "one heartbeat that is late must not cost the lease"),
)


def _agree(settings: Settings, origin: Mapping[str, str]) -> None:
    def value(name: str) -> int:
        section, key = name.split(".")
        found = getattr(getattr(settings, section), key)
        assert isinstance(found, int)
        return found

    problems = []
    for longer, shorter, why in AT_LEAST_TWICE:
        if value(longer) < 2 * value(shorter):
            reason = f"is {value(longer)}; it may be no less than twice {shorter}, which is {value(shorter)}"
            problems.append(Problem(origin[longer], longer, f"{reason} ({origin[shorter]}): {why}"))
    if value("worker.repeat_cap_ms") < value("worker.repeat_ms"):
        reason = f"is {value('worker.repeat_cap_ms')}; it may be no less than worker.repeat_ms, which is "
        reason += f"{value('worker.repeat_ms')} ({origin['worker.repeat_ms']})"
        problems.append(Problem(origin["worker.repeat_cap_ms"], "worker.repeat_cap_ms", reason))
    chosen = parse_shards(settings.coordinator.shards) or (0,)
    if chosen[-1] >= settings.kafka.shards:
        reason = f"is {settings.coordinator.shards!r}; kafka.shards is {settings.kafka.shards} "
        reason += f"({origin['kafka.shards']}), so the last shard is {settings.kafka.shards - 1}"
        problems.append(Problem(origin["coordinator.shards"], "coordinator.shards", reason))
    if problems:
        raise SettingsError(tuple(problems))
