"""`detent web`: REST and the web page."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from coordinator.web.guard import Guard
from coordinator.web.settings import WebSettings
from detent.connecting import connected
from detent.options import BootstrapServers, Changes, ConfigFile, StateDir, at_cluster, settings_for
from detent.settings import Settings, says
from detent.settings_sources import flag
from events.errors import DetentError


class TokenUnreadable(DetentError):
    """A token file that is set and can't be read, or is empty."""


def run_web(
    host: Annotated[str | None, typer.Option("--host", help=says("web.host"))] = None,
    port: Annotated[int | None, typer.Option("--port", help=says("web.port"))] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help=says("web.token_file"))] = None,
    read_token_file: Annotated[Path | None, typer.Option("--read-token-file", help=says("web.read_token_file"))] = None,
    bootstrap_servers: BootstrapServers = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    changes: Changes = None,
) -> None:
    """Serve REST, metrics and the web page until Ctrl-C or SIGTERM.

    It follows the log and loads no coordinator; start as many as you like. On any address but loopback a token is
    needed.

    Example: detent web --port 8460 --bootstrap-servers broker:9092
    """
    flags = [
        *flag("--host", "web.host", host),
        *flag("--port", "web.port", port),
        *flag("--token-file", "web.token_file", token_file),
        *flag("--read-token-file", "web.read_token_file", read_token_file),
        *at_cluster(bootstrap_servers, state_dir),
    ]
    loaded = settings_for(config, changes, flags, serves=True)
    settings = web_settings(loaded.settings)
    settings.guard.check()
    from coordinator.web.service import WebService  # a second to import, which no other command should wait for

    with connected(loaded) as cluster:
        code = WebService(cluster, settings).run()
    raise typer.Exit(code)


def web_settings(settings: Settings) -> WebSettings:
    chosen = settings.web
    guard = Guard(
        host=chosen.host,
        names=tuple(name.lower() for name in chosen.names),
        operate_token=read_token("web.token_file", chosen.token_file),
        read_token=read_token("web.read_token_file", chosen.read_token_file),
    )
    return WebSettings(guard=guard, port=chosen.port, lease_ms=settings.coordinator.lease_ms, version=version("detent"))


def read_token(setting: str, path: str) -> str:
    if not path:
        return ""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenUnreadable(f"the file of {setting} can't be read: {error}") from error
    if not token:
        raise TokenUnreadable(f"the file {path} of {setting} is empty; put a token into it, or leave the setting empty")
    return token
