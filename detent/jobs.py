"""Jobs built in Python: the same model as job files, checked in the same way.

Job("hello").source("in", "generator", rows=1000).sink("out", "files", path="/tmp/hello")
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from coordinator.specification import Environment
from detent.job_checks import problems
from detent.job_files import field_name, parse_job, read_job
from events.errors import DetentError


@dataclass(eq=False)
class JobRefused(DetentError):
    """A job that can't be submitted, with all that is wrong with it."""

    name: str
    reasons: tuple[str, ...]

    def message(self) -> str:
        return f"the job {self.name} can't be submitted: {'; '.join(self.reasons)}"


@dataclass(frozen=True)
class Job:
    """A job. Each method returns a new one with something added; nothing is checked before `body` is asked for."""

    name: str
    steps: tuple[tuple[str, dict[str, Any]], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def env(self, environment: Environment | None = None, /, **settings: Any) -> Job:
        """How it runs: `env(parallelism=2, checkpoint={"interval_ms": 5000})`, or an Environment."""
        given = msgspec.to_builtins(environment) if environment is not None else {}
        return replace(self, settings=tuple((dict(self.settings) | given | settings).items()))

    def source(self, name: str, kind: str, /, *, parallelism: int = 0, **options: Any) -> Job:
        """Read from something. Everything else that is given is an option of its kind."""
        shared = {"parallelism": parallelism} if parallelism else {}
        return self._with("source", {"name": name, "kind": kind, **shared, "options": options})

    def transform(self, name: str, kind: str, /, *, from_: str | Sequence[str] = (), **options: Any) -> Job:
        """Change what is read. Without `from_` it takes all that nobody takes yet."""
        return self._with("transform", {"name": name, "kind": kind, "from": self._from(from_), "options": options})

    def sink(self, name: str, kind: str, /, *, from_: str | Sequence[str] = (), **options: Any) -> Job:
        """Write to something. Without `from_` it takes all that nobody takes yet, or else what the last sink takes."""
        return self._with("sink", {"name": name, "kind": kind, "from": self._from(from_), "options": options})

    @property
    def value(self) -> dict[str, Any]:
        """The job as a job file has it."""
        found: dict[str, Any] = {"env": dict(self.settings)} if self.settings else {}
        for role, step in self.steps:
            found.setdefault(role, []).append(step)
        return found

    @property
    def body(self) -> str:
        """The specification as it is submitted. Raises JobRefused."""
        value = self.value
        if wrong := problems(value):
            raise JobRefused(self.name, tuple(f"{field_name(one.at)}: {one.reason}" for one in wrong))
        return json.dumps(value, ensure_ascii=False)

    def to_yaml(self) -> str:
        """A job file."""
        return yaml.safe_dump({"name": self.name, **self.value}, sort_keys=False, allow_unicode=True)

    @classmethod
    def from_file(cls, path: Path | str) -> Job:
        """Raises JobFileError, which says file, line and field."""
        read = read_job(Path(path))
        return cls._of(read.name, read.value)

    @classmethod
    def from_text(cls, text: str, file: str = "job.yaml") -> Job:
        """As `from_file`, of a text that is there already; `file` is what it is called in errors."""
        read = parse_job(text, file)
        return cls._of(read.name, read.value)

    @classmethod
    def _of(cls, name: str, value: dict[str, Any]) -> Job:
        steps = tuple((role, step) for role in ("source", "transform", "sink") for step in value.get(role, ()))
        return cls(name, steps, tuple(value.get("env", {}).items()))

    def _with(self, role: str, step: dict[str, Any]) -> Job:
        return replace(self, steps=(*self.steps, (role, step)))

    def _from(self, given: str | Sequence[str]) -> list[str]:
        if given:
            return [given] if isinstance(given, str) else list(given)
        taken = {name for _, step in self.steps for name in step.get("from", ())}
        free = [step["name"] for role, step in self.steps if role != "sink" and step["name"] not in taken]
        last: list[str] = next((step["from"] for role, step in reversed(self.steps) if role == "sink"), [])
        return free or last
