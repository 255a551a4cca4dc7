"""The `detent` command: gathers the command groups and turns errors into advice.

Every group lives in a module of its own and is registered in `build_app`. An error that Detent raises on
purpose becomes one paragraph on stderr and an exit code (detent/exits.py); a traceback is for programming errors only.
"""

from __future__ import annotations

import inspect
import json
import sys

import typer
from rich.console import Console

from detent import (
    asking_commands,
    broker_commands,
    config_commands,
    coordinator_commands,
    demo,
    doctor_commands,
    forensics_commands,
    job_commands,
    logs,
    up,
    view_commands,
    web_commands,
    worker_commands,
)
from detent.client import CommandRefused
from detent.exits import Exit
from detent.job_files import JobFileError
from detent.settings import Log
from detent.settings_sources import SettingsError
from detent.tether import tie_if_asked
from events.asking import NotAnswered
from events.errors import DetentError

# The exit code of each kind of error; of all others it is 1.
CODES: dict[type[DetentError], Exit] = {
    CommandRefused: Exit.REFUSED,
    JobFileError: Exit.INVALID,
    NotAnswered: Exit.NO_ANSWER,
    SettingsError: Exit.INVALID,
}


def build_app() -> typer.Typer:
    """All commands. A new group or command is added here."""
    app = typer.Typer(
        help="Run data jobs on Spark that survive every failover. State is kept on Kafka; without one of your own, "
        "Detent starts a real single-node broker for you. Exit codes are in docs/operations.md.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_no_options)  # keeps `detent broker …` a group, however few commands there are
    app.command("up")(up.up)
    app.command("validate")(job_commands.validate)
    for command in ("submit", "watch", "cancel", "savepoint", "restore", "stop", "pause", "resume", "repair"):
        app.command(command)(getattr(asking_commands, command))
    for command in ("jobs", "job", "checkpoints", "workers", "cluster"):
        app.command(command)(getattr(view_commands, command))
    for command in ("log", "at", "explain", "verify"):
        app.command(command)(getattr(forensics_commands, command))
    app.command("coordinator")(coordinator_commands.run_coordinator)
    app.command("worker")(worker_commands.run_worker)
    app.command("web")(web_commands.run_web)
    app.add_typer(broker_commands.app, name="broker")
    app.add_typer(config_commands.app, name="config")
    app.command("doctor")(doctor_commands.doctor)
    app.command("demo")(demo.run_demo)
    for group in (app, broker_commands.app, config_commands.app):
        _unwrap(group)
    return app


def _unwrap(app: typer.Typer) -> None:
    """Help is wrapped to the terminal's width, not to that of the source."""
    for command in app.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _no_options() -> None:
    pass


def main() -> None:
    """The entry point."""
    tie_if_asked()
    logs.set_up(Log(level="warning"))  # until a command knows its settings
    try:
        build_app()()
    except DetentError as error:
        code = next((code for kind, code in CODES.items() if isinstance(error, kind)), Exit.ERROR)
        if "--json" in sys.argv:
            said = {"error": type(error).__name__, "message": str(error), "exitCode": code.value}
            sys.stderr.write(json.dumps(said, ensure_ascii=False) + "\n")
        else:
            console = Console(stderr=True, highlight=False)
            console.print("Error:", style="bold red", end=" ")
            console.print(str(error), markup=False, soft_wrap=True)
        sys.exit(code)
