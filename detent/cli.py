"""The `detent` command: gathers the command groups and turns errors into advice.

Every group lives in a module of its own and is registered in `build_app`. An error that Detent raises on
purpose becomes one paragraph on stderr and exit code 1; a traceback is for programming errors only.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from detent import broker_commands, config_commands, coordinator_commands, demo, job_commands, logs, worker_commands
from detent.settings import Log
from events.errors import DetentError


def build_app() -> typer.Typer:
    """All commands. A new group or command is added here."""
    app = typer.Typer(
        help="Run data jobs on Spark that survive every failover. State is kept on Kafka; without one of your own, "
        "Detent starts a real single-node broker for you.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_no_options)  # keeps `detent broker …` a group, however few commands there are
    app.add_typer(broker_commands.app, name="broker")
    app.add_typer(config_commands.app, name="config")
    app.command("coordinator")(coordinator_commands.run_coordinator)
    app.command("worker")(worker_commands.run_worker)
    app.command("validate")(job_commands.validate)
    app.command("demo")(demo.run_demo)
    return app


def _no_options() -> None:
    pass


def main() -> None:
    """The entry point."""
    logs.set_up(Log(level="warning"))  # until a command knows its settings
    try:
        build_app()()
    except DetentError as error:
        console = Console(stderr=True, highlight=False)
        console.print("Error:", style="bold red", end=" ")
        console.print(str(error), markup=False, soft_wrap=True)
        sys.exit(1)
