"""`detent worker`: the process that runs tasks."""

from __future__ import annotations

import signal
import socket
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from detent.connecting import connected, topic_settings
from detent.options import BootstrapServers, Changes, ConfigFile, StateDir, at_cluster, settings_for
from detent.settings import Settings, parse_address, says
from detent.settings_sources import flag
from events.errors import DetentError
from events.places import Place
from workers.engine import find_engine
from workers.files import file_name
from workers.happenings import Settings as CoreSettings
from workers.service import Service, ServiceSettings


class DirectoryUnusable(DetentError):
    """The directory for the ledger can't be had."""


class WorkerRunsAlready(DetentError):
    """Two processes with one id on one machine."""


def run_worker(
    name: Annotated[str | None, typer.Option("--id", help=says("worker.id"))] = None,
    slots: Annotated[int | None, typer.Option("--slots", help=says("worker.slots"))] = None,
    engine: Annotated[str | None, typer.Option("--engine", metavar="MODULE:NAME", help=says("worker.engine"))] = None,
    bootstrap_servers: BootstrapServers = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    changes: Changes = None,
) -> None:
    """Run a worker until Ctrl-C or SIGTERM, which stops its tasks and tells the coordinator so.

    Start as many as you like, each with an id of its own. A worker that is started again under its id goes on with what
    it knows: what was lost is told at once.

    Example: detent worker --id w1 --bootstrap-servers broker:9092
    """
    flags = [
        *flag("--id", "worker.id", name),
        *flag("--slots", "worker.slots", slots),
        *flag("--engine", "worker.engine", engine),
        *at_cluster(bootstrap_servers, state_dir),
    ]
    loaded = settings_for(config, changes, flags, serves=True)
    worker = loaded.settings.worker.id or socket.gethostname()
    place = claim(Path(loaded.settings.worker_dir()), worker)
    try:
        settings = service_settings(loaded.settings, worker, place.path)
        with connected(loaded) as cluster:
            service = Service(cluster, settings)
            signal.signal(signal.SIGTERM, service.signalled)
            signal.signal(signal.SIGINT, service.signalled)
            code = service.run()
    finally:
        place.release()
    raise typer.Exit(code)


def claim(base: Path, worker: str) -> Place:
    """The worker's own directory: its ledger is in it, so it is the same for the same id and no other process's."""
    directory = base / f"id-{file_name(worker)}"
    try:
        place = Place(directory)
    except OSError as error:
        reason = f"the worker's directory {directory} can't be used: {error}. Set worker.state_dir or state_dir."
        raise DirectoryUnusable(reason) from error
    if place.path.name != "0":
        place.release()
        raise WorkerRunsAlready(
            f"another process on this machine is worker {worker} already, with its ledger in {place.path.parent}. "
            "Give this one an id of its own: --id, or worker.id."
        )
    return place


def service_settings(settings: Settings, worker: str, directory: Path) -> ServiceSettings:
    chosen = settings.worker
    host, port = parse_address(chosen.health_address)
    core = CoreSettings(
        worker=worker,
        instance=uuid.uuid4().hex[:12],
        host=socket.gethostname(),
        version=version("detent"),
        slots=chosen.slots,
        labels=chosen.labels,
        lease_ms=chosen.lease_ms,
        stall_ms=chosen.stall_ms,
        stop_patience_ms=chosen.stop_patience_ms,
        repeat_ms=chosen.repeat_ms,
        repeat_cap_ms=chosen.repeat_cap_ms,
    )
    return ServiceSettings(
        core=core,
        directory=directory,
        engine=find_engine(chosen.engine, chosen.allowed_modules),
        engine_options={
            "spark.master": chosen.spark.master,
            "spark.conf": chosen.spark.conf,
            "slice_ms": chosen.spark.slice_ms,
            "allowed_modules": tuple(chosen.allowed_modules),
        },
        heartbeat_ms=chosen.heartbeat_ms,
        topics=topic_settings(settings),
        host=host,
        port=port,
    )
