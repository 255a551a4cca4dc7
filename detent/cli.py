"""The `detent` command: gathers the commands and turns errors into advice.

Every command lives in a module of its own kind, which is imported when the command is given: a process starts with what
it needs. An error that Detent raises on purpose becomes one paragraph on stderr and an exit code (detent/exits.py); a
traceback is for programming errors only.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module

import typer
from rich.console import Console

from detent import logs
from detent.exits import Exit
from detent.settings import Log
from detent.tether import tie_if_asked
from events.errors import DetentError

# Where each command is, as `detent --help` lists them. A new one is added here.
COMMANDS: dict[str, str] = {
    "up": "up:up",
    "validate": "job_commands:validate",
    "submit": "asking_commands:submit",
    "watch": "asking_commands:watch",
    "cancel": "asking_commands:cancel",
    "savepoint": "asking_commands:savepoint",
    "restore": "asking_commands:restore",
    "stop": "asking_commands:stop",
    "pause": "asking_commands:pause",
    "resume": "asking_commands:resume",
    "repair": "asking_commands:repair",
    "jobs": "view_commands:jobs",
    "job": "view_commands:job",
    "checkpoints": "view_commands:checkpoints",
    "workers": "view_commands:workers",
    "cluster": "view_commands:cluster",
    "log": "forensics_commands:log",
    "at": "forensics_commands:at",
    "explain": "forensics_commands:explain",
    "verify": "forensics_commands:verify",
    "coordinator": "coordinator_commands:run_coordinator",
    "worker": "worker_commands:run_worker",
    "web": "web_commands:run_web",
    "broker": "broker_commands:app",
    "config": "config_commands:app",
    "doctor": "doctor_commands:doctor",
    "demo": "demo:run_demo",
}


def build_app(given: str = "") -> typer.Typer:
    """The command that is given, alone; all of them where it is none."""
    app = typer.Typer(
        help="Run data jobs on Spark that survive every failover. State is kept on Kafka; without one of your own, "
        "Detent starts a real single-node broker for you. Exit codes are in docs/operations.md.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_no_options)  # keeps it a group, however few commands there are
    for name in [given] if given in COMMANDS else COMMANDS:
        module, _, what = COMMANDS[name].partition(":")
        command = getattr(import_module(f"detent.{module}"), what)
        if isinstance(command, typer.Typer):
            _unwrap(command)
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    _unwrap(app)
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
        build_app(*sys.argv[1:2])()
    except DetentError as error:
        code = _code_of(error)
        if "--json" in sys.argv:
            said = {"error": type(error).__name__, "message": str(error), "exitCode": code.value}
            sys.stderr.write(json.dumps(said, ensure_ascii=False) + "\n")
        else:
            console = Console(stderr=True, highlight=False)
            console.print("Error:", style="bold red", end=" ")
            console.print(str(error), markup=False, soft_wrap=True)
        sys.exit(code)


def _code_of(error: DetentError) -> Exit:
    from detent.client import CommandRefused
    from detent.job_files import JobFileError
    from detent.settings_sources import SettingsError
    from events.asking import NotAnswered

    codes: dict[type[DetentError], Exit] = {
        CommandRefused: Exit.REFUSED,
        JobFileError: Exit.INVALID,
        NotAnswered: Exit.NO_ANSWER,
        SettingsError: Exit.INVALID,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), Exit.ERROR)
