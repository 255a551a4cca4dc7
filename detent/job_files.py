"""Job files: YAML or JSON with `env`, `source`, `transform`, `sink` and, if they like, the job's `name`.

What is wrong with one is told with file, line, column and field, all of it at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.specification import Where
from detent.job_checks import Wrong, normal, problems
from detent.job_text import Document, Mark, TextProblem, read_text
from detent.settings_sources import read_text as read_file
from events.errors import DetentError, UnreadableKey
from events.keys import check_name


@dataclass(frozen=True)
class JobProblem:
    """One thing that is wrong: where in which file, of which field."""

    file: str
    line: int
    column: int
    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.field}: {self.reason}"


@dataclass(eq=False)
class JobFileError(DetentError):
    """A job file that can't be used, with all that is wrong with it."""

    problems: tuple[JobProblem, ...]

    def message(self) -> str:
        if len(self.problems) == 1:
            return f"the job can't be used. {self.problems[0]}"
        return "the job can't be used:" + "".join(f"\n  - {problem}" for problem in self.problems)


@dataclass(frozen=True)
class JobFile:
    """A job that was read from a file, checked. `name` is what the file says, else the file's own name."""

    name: str
    value: dict[str, Any]

    @property
    def body(self) -> str:
        """The specification as it is submitted."""
        return json.dumps(self.value, ensure_ascii=False)


def read_job(path: Path) -> JobFile:
    """Raises JobFileError, or UnreadableFile where there is nothing to read."""
    return parse_job(read_file(path, "the command"), str(path))


def parse_job(text: str, file: str) -> JobFile:
    """The job in a text; `file` is what it is called in what is wrong with it. Raises JobFileError."""
    try:
        document = read_text(text, is_json=file.endswith(".json"))
    except TextProblem as problem:
        line, column = problem.mark
        raise JobFileError((JobProblem(file, line, column, "the file", problem.reason),)) from problem
    value = document.value
    name = Path(file).stem
    found: list[Wrong] = []
    if isinstance(value, dict) and "name" in value:
        name = value.pop("name")
        found += _wrong_name(name)
    value = normal(value)
    found += problems(value)
    if found:
        raise JobFileError(tuple(sorted((_placed(document, file, wrong) for wrong in found), key=_order)))
    return JobFile(name, value)


def _wrong_name(name: Any) -> list[Wrong]:
    if not isinstance(name, str):
        return [Wrong(("name",), "it is no text; put it in quotes")]
    try:
        check_name(name)
    except UnreadableKey as error:
        return [Wrong(("name",), f"it can't be a job's: {error.reason}")]
    return []


def _placed(document: Document, file: str, wrong: Wrong) -> JobProblem:
    mark: Mark = document.key_place(wrong.at) if wrong.of_key else document.place(wrong.at)
    return JobProblem(file, mark.line, mark.column, field_name(wrong.at), wrong.reason)


def _order(problem: JobProblem) -> tuple[int, int]:
    return problem.line, problem.column


def field_name(at: Where) -> str:
    """`source[0].options.path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in at)
    return text.removeprefix(".") or "the job"
