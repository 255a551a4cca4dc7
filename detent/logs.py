"""How processes log: to stderr, one record a line, as key=value pairs or JSON, with the fields of `events.log_fields`.

Whoever logs uses the standard library and knows nothing of this module; only a process's entry point calls `set_up`.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

from detent.settings import Log

LOG = logging.getLogger(__name__)
# What every record has anyway; all else on it was given as `extra`.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
OURS = ("time", "level", "logger", "message", "error", "traceback", "stack")
FIRST = ("shard", "epoch", "job", "pipeline", "task", "attempt", "worker")
CONVERSION = r"%[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?([diouxXeEfFgGcrsa])"
PLACEHOLDER = re.compile(rf"%%|(?:\b(\w+)=)?{CONVERSION}")
TAIL = re.compile(rf"(?<=\S)(?:\s+\w+={CONVERSION})+\s*\Z")
PLAIN = re.compile(r"[^\s\"'=\\]+")


def set_up(log: Log, stream: TextIO | None = None) -> None:
    """Send all logs, and what ends a thread or the process unexpectedly, to stderr in the form that is set."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if log.format == "json" else KeyValueLines())
    logging.basicConfig(level=log.level.upper(), handlers=[handler], force=True)
    # The client library warns of what passes by itself (a coordinator that loads, a retry).
    logging.getLogger("events.librdkafka").setLevel(logging.NOTSET if log.level == "debug" else logging.ERROR)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells every call to the JVM
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


class JsonLines(logging.Formatter):
    """One JSON object a record. A traceback is one field of it."""

    def format(self, record: logging.LogRecord) -> str:
        line = _line(record, self)
        return json.dumps(line, default=str, ensure_ascii=False)


class KeyValueLines(logging.Formatter):
    """One line of key=value pairs a record. A traceback follows it, indented, for people."""

    def format(self, record: logging.LogRecord) -> str:
        line = _line(record, self)
        trace = "".join(
            f"\n    {part}" for key in ("traceback", "stack") for part in str(line.pop(key, "")).splitlines()
        )
        return " ".join(f"{key}={_quoted(value)}" for key, value in line.items()) + trace


def _line(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, object]:
    message, fields = _split(record)
    fields |= {key: value for key, value in vars(record).items() if key not in STANDARD}
    line: dict[str, object] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": message,
    }
    for key in sorted(fields, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST)):
        value = fields[key]
        no_json = isinstance(value, float) and not math.isfinite(value)
        line[f"{key}_" if key in OURS else key] = str(value) if no_json else value
    if record.exc_info and record.exc_info[1] is not None:
        line["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        line["traceback"] = formatter.formatException(record.exc_info)
    if record.stack_info:
        line["stack"] = record.stack_info
    return line


def _split(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """The text and the fields that are written into it as `name=%d`. Those at its end are left out of the text."""
    if isinstance(record.args, Mapping):
        return record.getMessage(), dict(record.args)
    if not record.args or not isinstance(record.msg, str):
        return record.getMessage(), {}
    tail = TAIL.search(record.msg)
    end = tail.start() if tail else len(record.msg)
    fields: dict[str, object] = {}
    used = used_by_text = 0
    for found in PLACEHOLDER.finditer(record.msg):
        name, width, precision, conversion = found.groups()
        used += (width == "*") + (precision == "*") + (conversion is not None)
        if found.start() < end:
            used_by_text = used
        if name and conversion and used <= len(record.args):
            fields[name] = _native(record.args[used - 1], conversion)
    if used != len(record.args):
        return record.getMessage(), fields  # which raises: the caller made a mistake
    return record.msg[:end] % record.args[:used_by_text], fields


def _native(value: object, conversion: str) -> object:
    if conversion in "ra":
        return repr(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    if PLAIN.fullmatch(text) and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, Exception):
        sys.__excepthook__(kind, error, trace)
        return
    LOG.critical("an unexpected error ended the process", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(it: threading.ExceptHookArgs) -> None:
    if it.exc_value is None or issubclass(it.exc_type, SystemExit):
        return
    name = it.thread.name if it.thread else "?"
    LOG.critical(
        "an unexpected error ended a thread",
        extra={"in_thread": name},
        exc_info=(it.exc_type, it.exc_value, it.exc_traceback),
    )
