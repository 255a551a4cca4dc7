"""`detent doctor`."""

from __future__ import annotations

import typer
from rich.text import Text

from detent.doctor import examine
from detent.exits import Exit
from detent.options import BootstrapServers, Changes, ConfigFile, StateDir, at_cluster, settings_for
from detent.output import Json, console, say_json

MARKS = {"good": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "bold red")}


def doctor(
    bootstrap_servers: BootstrapServers = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:
    """Look at everything that a Detent stands on: Java, Spark, broker, topics, rights, clock, disk, processes.

    It changes nothing, and says what to do. The exit code is 7 when something is wrong. Example: detent doctor
    """
    loaded = settings_for(config, changes, at_cluster(bootstrap_servers, state_dir))
    screen, found = console(), []
    for finding in examine(loaded):
        found.append(finding)
        if not as_json:
            mark, style = MARKS[finding.verdict]
            line = Text.assemble((f"{mark:<5}", style), (f"{finding.what:<10}", "bold"), finding.found)
            screen.print(line)
            if finding.do:
                screen.print(Text(f"{'':15}→ {finding.do}"))
    if as_json:
        say_json({"findings": [finding._asdict() for finding in found]})
    if any(finding.verdict == "bad" for finding in found):
        raise typer.Exit(Exit.UNSOUND)
