"""`detent validate`: what is wrong with job files, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detent.exits import Exit
from detent.job_files import JobFileError, JobProblem, read_job
from detent.job_schema import schema_text
from detent.output import Json, say, say_json
from detent.settings_sources import UnreadableFile


def validate(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE…", help="Job files, YAML or JSON.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of job files, for editors.")] = False,
    as_json: Json = False,
) -> None:
    """Check job files: everything that is wrong is told, with file, line, column and field.

    Example: detent validate examples/hello.yaml
    """
    if schema:
        typer.echo(schema_text(), nl=False)
        return
    if not files:
        raise typer.BadParameter("name a job file, or ask for the schema with --schema", param_hint="FILE…")
    found: list[JobProblem] = []
    for path in files:
        try:
            read_job(path)
        except JobFileError as error:
            found += error.problems
        except UnreadableFile as error:
            found.append(JobProblem(str(path), 0, 0, "the file", error.reason))
    if as_json:
        say_json({"files": [str(path) for path in files], "problems": found})
    else:
        for problem in found:
            say(str(problem))
        if not found:
            say(f"{', '.join(map(str, files))}: nothing wrong")
    if found:
        raise typer.Exit(Exit.INVALID)
