"""`detent up`: a broker, coordinators, workers and the web page with one command, for development.

The same settings hold for all of them; each gets an id of its own. What they say goes to files in the state directory.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from detent.connecting import connected
from detent.options import BootstrapServers, Changes, ConfigFile, StateDir, at_cluster, settings_for
from detent.output import Json, camel, say, say_json
from detent.settings import says
from detent.settings_load import Loaded
from detent.settings_sources import Given, flag
from detent.stopping import Stopping
from detent.supervisor import Change, Program, Supervisor
from events import embedded
from events.cluster import Cluster

LOOK_S = 0.2
BROKER_LOOK_S = 2.0
WORKERS, COORDINATORS, PAGES = 0, 1, 2  # the order in which they stop


def programs(coordinators: int, workers: int, common: Sequence[str], *, web_port: int | None) -> list[Program]:
    """What `up` runs. `common` are the options that all of them take."""
    detent = (sys.executable, "-m", "detent")
    found = [
        Program(f"coordinator-{n}", [*detent, "coordinator", "--id", f"c{n}", *common], COORDINATORS)
        for n in range(1, coordinators + 1)
    ]
    found += [
        Program(f"worker-{n}", [*detent, "worker", "--id", f"w{n}", *common], WORKERS) for n in range(1, workers + 1)
    ]
    if web_port is not None:
        found.append(Program("web", [*detent, "web", *common, "--port", str(web_port)], PAGES))
    return found


def port_for_page(loaded: Loaded) -> int:
    """The port that is set; any free one where nobody has set it and the usual one is taken."""
    web = loaded.settings.web
    if loaded.is_given("web.port"):
        return web.port
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind((web.host, web.port))
        except OSError:
            return 0
    return web.port


def common_options(config: Path | None, changes: Sequence[str] | None, flags: Sequence[Given]) -> list[str]:
    """The settings that `up` was given, for what it starts."""
    found = ["--config", str(config)] if config else []
    for change in changes or ():
        found += ["--set", change]
    for given in flags:
        found += ["--set", f"{given.name}={given.value}"]
    return found


@contextmanager
def running(
    loaded: Loaded, wanted: Sequence[Program], tell: Callable[[Change], None]
) -> Iterator[tuple[Supervisor, Cluster]]:
    """The broker and all processes, for as long as they are needed."""
    with connected(loaded) as cluster:
        directory = Path(loaded.settings.state_dir, "logs").absolute()
        with Supervisor(wanted, directory, tell) as supervisor:
            yield supervisor, cluster


def up(
    coordinators: Annotated[int, typer.Option("--coordinators", min=0, max=100, help="How many coordinators.")] = 1,
    workers: Annotated[int, typer.Option("--workers", min=0, max=100, help="How many workers.")] = 1,
    web: Annotated[bool, typer.Option("--web/--no-web", help="Whether to serve REST and the web page.")] = True,
    engine: Annotated[str | None, typer.Option("--engine", metavar="MODULE:NAME", help=says("worker.engine"))] = None,
    bootstrap_servers: BootstrapServers = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:
    """Start everything that a Detent is, and keep it going until Ctrl-C, which stops all of it in good order.

    Without --bootstrap-servers it starts a broker of its own, with its data in the state directory. A process that ends
    is started again; one that ends again and again is given up, with the reason.

    Example: detent up --coordinators 2 --workers 2
    """
    flags = [
        *flag("--engine", "worker.engine", engine),
        *at_cluster(bootstrap_servers, state_dir),
    ]
    loaded = settings_for(config, changes, flags)
    wanted = programs(
        coordinators, workers, common_options(config, changes, flags), web_port=port_for_page(loaded) if web else None
    )

    def tell(change: Change) -> None:
        if as_json:
            say_json(camel(change))
        elif change.what != "started":
            say(f"{change.name} {'is' if change.what == 'ready' else 'has'} {change.what} {_in_brackets(change)}")

    with Stopping() as stopping, running(loaded, wanted, tell) as (supervisor, cluster):
        _tell_places(loaded, cluster, supervisor, tell, as_json=as_json)
        looked = time.monotonic()
        while not stopping.asked:
            supervisor.tend()
            if time.monotonic() - looked > BROKER_LOOK_S:
                looked = time.monotonic()
                _revive_broker(loaded, tell)
            stopping.wait(LOOK_S)
        if not as_json:
            say("stopping all of them, in good order…")
    if not as_json:
        say("all have stopped; their data is kept")


def _tell_places(
    loaded: Loaded, cluster: Cluster, supervisor: Supervisor, tell: Callable[[Change], None], *, as_json: bool
) -> None:
    if as_json:
        tell(Change("broker", "ready", cluster.bootstrap_servers))
        return
    where = "" if loaded.settings.kafka.bootstrap_servers else f", its data in {Path(loaded.settings.state_dir)}/broker"
    say(f"the broker is at {cluster.bootstrap_servers}{where}")
    say(f"what the processes say is in {supervisor.directory}")
    say("Ctrl-C stops all of them. In another terminal: detent submit examples/hello.yaml --watch")


def _in_brackets(change: Change) -> str:
    return f"({change.detail})" if change.what == "ready" else change.detail


def _revive_broker(loaded: Loaded, tell: Callable[[Change], None]) -> None:
    """The embedded broker is no child of ours: it has a guard, and whoever needs it starts it again."""
    settings = loaded.settings
    if settings.kafka.bootstrap_servers or embedded.status(settings.state_dir) is not None:
        return
    tell(Change("broker", "ended", "it is started again, on its old port and with its data"))
    broker = embedded.EmbeddedBroker(settings.state_dir).start()
    tell(Change("broker", "ready", broker.bootstrap_servers))
    broker.stop()  # `running` and the processes hold it
