"""`detent config`: the settings that hold here, each with where it came from, and the page that tells them all."""

from __future__ import annotations

from typing import Annotated

import typer

from detent.options import Changes, ConfigFile, settings_for
from detent.settings_text import json_text, page, toml_lines

app = typer.Typer(
    help="The settings: what holds here, where it was said, and what there is to set.", no_args_is_help=True
)


@app.command("show")
def show(
    config: ConfigFile = None,
    changes: Changes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not left to its default.")] = False,
) -> None:
    """Print all settings as a TOML file, with the origin of each behind it. Secrets are masked.

    Example: detent config show --changed
    """
    loaded = settings_for(config, changes)
    shown = {name: value for name, value in loaded.values().items() if not changed or loaded.is_given(name)}
    if as_json:
        typer.echo(json_text(shown, loaded.origin))
    else:
        for line in toml_lines(shown, loaded.origin):
            typer.echo(line)


@app.command("docs")
def docs() -> None:
    """Print the page that tells all settings (docs/configuration.md)."""
    typer.echo(page(), nl=False)
