"""Structured logs: fields however they are given, one record a line, tracebacks as one field."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detent.logs import JsonLines, KeyValueLines
from events.log_fields import FieldLogger, with_fields

ROOT = Path(__file__).parent.parent


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger that nobody else hears."""
    logger = logging.Logger("events.test")
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)


def hearing(log: logging.Logger, formatter: logging.Formatter) -> io.StringIO:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log.addHandler(handler)
    return stream


@pytest.fixture
def said(log: logging.Logger) -> Iterator[list[dict[str, Any]]]:
    """The JSON lines, read back when the test looks at them."""
    stream = hearing(log, JsonLines())

    class Lines(list[dict[str, Any]]):
        def __getitem__(self, index: Any) -> Any:
            return [json.loads(line) for line in stream.getvalue().splitlines()][index]

    yield Lines()


def fields(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("time", "level", "logger", "message")}


def test_a_line_says_when_how_bad_who_and_what(log: logging.Logger, said: list[dict[str, Any]]) -> None:
    log.warning("the leader is silent")
    assert list(said[0]) == ["time", "level", "logger", "message"]
    assert said[0]["time"].endswith("Z")
    assert (said[0]["level"], said[0]["logger"]) == ("warning", "events.test")
    assert said[0]["message"] == "the leader is silent"


@pytest.mark.parametrize(
    ("message", "arguments", "text", "found"),
    [
        ("lost shard=%d epoch=%d", (3, 7), "lost", {"shard": 3, "epoch": 7}),
        ("%s shard=%d", ("it is full", 3), "it is full", {"shard": 3}),
        ("writer=%s is not open: %s", ("w", "why"), "writer=w is not open: why", {"writer": "w"}),
        ("at job=%s of %s pipeline=%d", ("a b", "x", 0), "at job=a b of x", {"job": "a b", "pipeline": 0}),
        ("100%% of job=%s", ("j",), "100% of", {"job": "j"}),
        ("shard=%d", (3,), "shard=3", {"shard": 3}),
        (
            "odd key=%r value=%s took_s=%.1f",
            (b"k", b"v", 1.25),
            "odd",
            {"key": "b'k'", "value": "b'v'", "took_s": 1.25},
        ),
        ("padded shard=%*d", (5, 3), "padded", {"shard": 3}),
        ("by name %(shard)d", ({"shard": 3},), "by name 3", {"shard": 3}),
        ("nothing % d", (5,), "nothing  5", {}),
        ("level=%s time=%s", ("high", "now"), "level=high", {"level_": "high", "time_": "now"}),
        ("never ratio=%f", (float("nan"),), "never", {"ratio": "nan"}),
    ],
)
def test_pairs_in_the_text_are_fields(
    message: str, arguments: tuple[Any, ...], text: str, found: dict[str, Any],
    log: logging.Logger, said: list[dict[str, Any]],
) -> None:  # fmt: skip
    log.error(message, *arguments)
    assert said[0]["message"] == text
    assert fields(said[0]) == found


def test_fields_of_a_logger_and_of_a_line(log: logging.Logger, said: list[dict[str, Any]]) -> None:
    of_shard: FieldLogger = with_fields(log, shard=3, epoch=7)
    of_task = with_fields(of_shard, task=0, job="orders", attempt=2)
    of_task.info("deployed worker=%s", "w-1", extra={"epoch": 8, "reason": "new"})
    of_shard.info("still here")
    expected = {"shard": 3, "epoch": 8, "job": "orders", "task": 0, "attempt": 2, "worker": "w-1", "reason": "new"}
    assert fields(said[0]) == expected
    assert list(fields(said[0])) == list(expected)
    assert fields(said[1]) == {"shard": 3, "epoch": 7}


def test_a_traceback_is_one_field(log: logging.Logger, said: list[dict[str, Any]]) -> None:
    try:
        raise ValueError("no\nway")
    except ValueError:
        log.exception("it went wrong shard=%d", 3)
    assert said[0]["error"] == "ValueError: no\nway"
    assert said[0]["traceback"].startswith("Traceback (most recent call last):\n")
    assert said[0]["traceback"].endswith("ValueError: no\nway")
    log.info("from here", stack_info=True)
    assert "test_a_traceback_is_one_field" in said[1]["stack"]


def test_pairs_are_quoted_so_that_nothing_can_pose_as_a_line(log: logging.Logger) -> None:
    stream = hearing(log, KeyValueLines())
    log.warning("lost\nlevel=info job=%s empty=%s path=%s", 'a "b"\x1b[2J\x9b', "", "/a/b")
    (line,) = stream.getvalue().splitlines()
    assert line.partition(" ")[2] == (
        r'level=warning logger=events.test message="lost\nlevel=info"'
        r' job="a \"b\"\u001b[2J\u009b" empty="" path=/a/b'
    )
    stream.truncate(0)
    stream.seek(0)
    try:
        raise ValueError("no\nlevel=info")
    except ValueError:
        log.exception("wrong")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith(r'message=wrong error="ValueError: no\nlevel=info"')
    assert len(rest) > 3
    assert all(line.startswith("    ") for line in rest)


SCRIPT = """
import logging, sys, threading
from detent import logs
from detent.settings import Log
logs.set_up(Log(format=sys.argv[1], level=sys.argv[2]))
logging.getLogger("events.recovery").info("rebuilt shard=%d", 3)
logging.getLogger("events.librdkafka").warning("a retry")
logging.getLogger("py4j").info("a call")
thread = threading.Thread(target=lambda: 1 / 0, name="mirror")
thread.start()
thread.join()
sys.stdout.write("nothing else here")
raise KeyError("unexpected")
"""


def run(form: str, level: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, form, level]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


def test_a_process_logs_everything_to_stderr_even_what_ends_it() -> None:
    done = run("json", "info")
    assert (done.returncode, done.stdout) == (1, "nothing else here")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["message"] for line in lines] == [
        "rebuilt", "an unexpected error ended a thread", "an unexpected error ended the process",
    ]  # fmt: skip
    assert lines[0]["shard"] == 3
    assert (lines[1]["in_thread"], lines[1]["error"]) == ("mirror", "ZeroDivisionError: division by zero")
    assert lines[2]["traceback"].endswith("KeyError: 'unexpected'")


def test_the_level_decides_what_is_said() -> None:
    assert "rebuilt" not in run("key=value", "warning").stderr
    everything = run("key=value", "debug").stderr
    assert 'logger=events.librdkafka message="a retry"' in everything
    assert "a call" not in everything
