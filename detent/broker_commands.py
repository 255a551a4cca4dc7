"""`detent broker`: run, look at and stop the embedded broker by hand.

Nobody has to: whatever needs a broker and has no `bootstrap.servers` starts it. These commands only call
`events.embedded` and say what came of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from detent.options import Changes, ConfigFile, StateDir, settings_for
from detent.settings_sources import flag
from detent.stopping import Stopping
from events.broker_launch import BrokerFailed, log_tail
from events.broker_state import BrokerStatus, broker_directory, is_guarded, is_used, wait_for
from events.embedded import DEFAULT_HEAP, STOP_LIMIT_S, EmbeddedBroker, answers, status, stop
from events.embedded_guard import ASKED_TO_STOP

NOT_RUNNING = 3
LOOK_INTERVAL_S = 0.5

app = typer.Typer(
    help="The embedded broker: a real single-node Kafka on this machine, shared by all that use the same state "
    "directory. It starts when something needs it and ends with its last user.",
    no_args_is_help=True,
)


@app.command("run")
def run_broker(
    state_dir: StateDir = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A server property of Kafka; may be given many times."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The port to listen on; without it, the last one or a free one.")
    ] = None,
    heap: Annotated[str, typer.Option(help="The JVM's largest heap.")] = DEFAULT_HEAP,
    config: ConfigFile = None,
    changes: Changes = None,
) -> None:
    """Run the broker in the foreground, until Ctrl-C or SIGTERM.

    Where one already runs, this joins it and keeps it running.

    Example: detent broker run --property log.cleaner.backoff.ms=100
    """
    overrides = _parse_properties(properties) if properties else None
    directory = _state_dir(state_dir, config, changes)
    broker = EmbeddedBroker(directory, overrides=overrides, port=port, heap=heap)
    with broker, Stopping() as stopping:
        _say(f"The broker is ready.\n\n  bootstrap.servers  {broker.bootstrap_servers}")
        _say(f"  data and log       {broker.directory}\n")
        _say(f"Stop it with Ctrl-C here, or anywhere with: detent broker stop --state-dir {directory}")
        while not stopping.wait(LOOK_INTERVAL_S):
            if not broker.status.is_alive():
                _explain_end(broker.directory)
                return
    _await_end(directory)


@app.command("status")
def show_status(
    state_dir: StateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    config: ConfigFile = None,
    changes: Changes = None,
) -> None:
    """Say whether the broker runs, and where. Exit code 0 when it does, 3 when not."""
    directory = _state_dir(state_dir, config, changes)
    found = status(directory)
    answering = found is not None and answers(found, timeout_s=2.0)
    if as_json:
        typer.echo(json.dumps(_describe(found, answering)))
    elif found is None:
        _say(f"No broker runs in {broker_directory(directory)}. It starts when something needs it.")
    else:
        state = "is stopping" if found.stopping else "runs" if answering else "runs, but does not answer (yet)"
        _say(f"The broker {state}.\n\n  bootstrap.servers  {found.bootstrap_servers}")
        _say(f"  since              {found.started_at}\n  process            {found.pid} (guard {found.guard_pid})")
        _say(f"  log                {found.log}")
        for name, value in found.overrides.items():
            _say(f"  {name}={value}")
    raise typer.Exit(0 if found else NOT_RUNNING)


@app.command("stop")
def stop_broker(state_dir: StateDir = None, config: ConfigFile = None, changes: Changes = None) -> None:
    """Stop the broker, even while others use it. Its data stays."""
    directory = _state_dir(state_dir, config, changes)
    if stop(directory):
        _say("The broker has stopped. Its data is kept.")
    else:
        _say(f"No broker runs in {broker_directory(directory)}: nothing to stop.")


def _state_dir(state_dir: Path | None, config: Path | None, changes: list[str] | None) -> Path:
    return Path(settings_for(config, changes, flag("--state-dir", "state_dir", state_dir)).settings.state_dir)


def _parse_properties(properties: list[str]) -> dict[str, str]:
    parsed = {}
    for text in properties:
        name, separator, value = text.partition("=")
        if not name.strip() or not separator:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
        parsed[name.strip()] = value.strip()
    return parsed


def _describe(found: BrokerStatus | None, answering: bool) -> dict[str, object]:
    if found is None:
        return {"running": False}
    shown = ("bootstrap_servers", "pid", "guard_pid", "port", "controller_port", "started_at", "log", "overrides")
    return {"running": True, "answering": answering, **{name: getattr(found, name) for name in shown}}


def _explain_end(directory: Path) -> None:
    """The broker ended before we did: as somebody wished, or not."""
    tail = log_tail(directory)
    if ASKED_TO_STOP not in tail:
        raise BrokerFailed("ended by itself or was killed", directory, tail)
    _say("The broker was stopped from elsewhere.")


def _await_end(state_dir: Path) -> None:
    directory = broker_directory(state_dir)
    wait_for(lambda: is_used(directory) or not is_guarded(directory), STOP_LIMIT_S, directory, "the end of the broker")
    if is_guarded(directory):
        _say("Left the broker to the other processes that use it; it ends with the last of them.")
    else:
        _say("The broker has stopped. Its data is kept.")


def _say(text: str) -> None:
    Console(highlight=False, markup=False, soft_wrap=True).print(text)
