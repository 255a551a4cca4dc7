"""`detent coordinator`: the process that decides."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from coordinator.reign import Rules
from coordinator.runner import Timing
from coordinator.service import Service, ServiceSettings
from detent.connecting import connected, topic_settings
from detent.options import BootstrapServers, Changes, ConfigFile, StateDir, at_cluster, settings_for
from detent.settings import Settings, parse_address, says
from detent.settings_sources import flag
from events.places import Place


def run_coordinator(
    shards: Annotated[str | None, typer.Option("--shards", metavar="all|0-3", help=says("coordinator.shards"))] = None,
    name: Annotated[str | None, typer.Option("--id", help=says("coordinator.id"))] = None,
    bootstrap_servers: BootstrapServers = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    changes: Changes = None,
) -> None:
    """Run a coordinator until Ctrl-C or SIGTERM, which hands its shards over to the others at once.

    Start as many as you like: each stands by for the shards that others lead, and they are spread evenly.

    Example: detent coordinator --shards all --bootstrap-servers broker:9092
    """
    flags = [
        *flag("--shards", "coordinator.shards", shards),
        *flag("--id", "coordinator.id", name),
        *at_cluster(bootstrap_servers, state_dir),
    ]
    loaded = settings_for(config, changes, flags, serves=True)
    place = Place(Path(loaded.settings.coordinator_dir()))
    try:
        with connected(loaded) as cluster:
            code = Service(cluster, service_settings(loaded.settings, place.path)).run()
    finally:
        place.release()
    raise typer.Exit(code)


def service_settings(settings: Settings, state_dir: Path) -> ServiceSettings:
    chosen = settings.coordinator
    host, port = parse_address(chosen.health_address)
    return ServiceSettings(
        name=chosen.id,
        shards=tuple(settings.shards_to_lead()),
        rules=Rules(
            lease_ms=chosen.lease_ms,
            sweep_ms=chosen.sweep_ms,
            group_records=chosen.group_records,
            group_bytes=chosen.group_bytes,
            group_ms=chosen.group_ms,
        ),
        timing=Timing(
            beat_ms=chosen.beat_ms,
            detection_ms=chosen.detection_ms,
            transaction_timeout_ms=chosen.transaction_timeout_ms,
        ),
        topics=topic_settings(settings),
        state_dir=state_dir,
        host=host,
        port=port,
        version=version("detent"),
    )
