"""The options that commands share, and what they come to: the settings that hold, and logs as they say.

A command that has an option of its own for a setting passes `flag("--state-dir", "state_dir", state_dir)`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from detent import logs
from detent.settings import says
from detent.settings_load import Loaded, load
from detent.settings_sources import Given, flag, is_assignment


def _check_changes(changes: list[str] | None) -> list[str] | None:
    for text in changes or []:
        if not is_assignment(text):
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return changes


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The file with the settings. Without it: DETENT_CONFIG, else detent.toml in this directory.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        callback=_check_changes,
        help="A setting, such as kafka.bootstrap_servers=host:9092; may be given many times. `detent config docs` "
        "tells them all.",
    ),
]
BootstrapServers = Annotated[str | None, typer.Option("--bootstrap-servers", help=says("kafka.bootstrap_servers"))]
StateDir = Annotated[Path | None, typer.Option("--state-dir", help=says("state_dir"))]


def at_cluster(bootstrap_servers: str | None, state_dir: Path | None) -> list[Given]:
    """The two options by which every command finds the cluster, as flags."""
    return [
        *flag("--bootstrap-servers", "kafka.bootstrap_servers", bootstrap_servers),
        *flag("--state-dir", "state_dir", state_dir),
    ]


def settings_for(
    config: Path | None, changes: list[str] | None, flags: Sequence[Given] = (), *, serves: bool = False
) -> Loaded:
    """Load the settings and set the logs up. A command that does not serve speaks up only when something is wrong,
    unless a level is set."""
    loaded = load(config, os.environ, [*(changes or ()), *flags])
    log = loaded.settings.log
    quiet = not serves and not loaded.is_given("log.level")
    logs.set_up(msgspec.structs.replace(log, level="warning") if quiet else log)
    return loaded
