"""What all commands that look at the log have in common: their options, the connection, and how a view is said. They
write nothing, and ask no coordinator.

@looks
def workers(look: Look) -> None:
    ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec

from coordinator.answers import Answers
from coordinator.past import Past
from coordinator.read_model import ReadModel
from detent.asking import parameters
from detent.connecting import connected
from detent.options import BootstrapServers, Changes, ConfigFile, StateDir, at_cluster, settings_for
from detent.output import Json
from detent.reaching import NothingRuns
from detent.settings_load import Loaded
from events import embedded
from events.asking import shards_of
from events.broker_state import broker_directory
from events.cluster import Cluster
from events.codec import Codec
from events.errors import DetentError
from events.schema_topic import reading_codec

P = ParamSpec("P")


@dataclass(eq=False)
class UnknownJob(DetentError):
    """Nothing is known of a job of this id. Says what is near."""

    job: str
    near: tuple[str, ...] = ()
    when: str = ""
    told_of: bool = False  # whether the log still tells of one

    def message(self) -> str:
        then = f" {self.when}" if self.when else ""
        if self.told_of and not self.when:
            return (
                f"Job {self.job} has ended and its summary is gone. The log still tells of it: `detent log {self.job}` "
                f"shows every transition, `detent explain {self.job} --time …` explains it as of then."
            )
        hint = f" Did you mean {' or '.join(self.near)}?" if self.near else ""
        return (
            f"There is no job {self.job}{then}, and the summary of none is kept.{hint} `detent jobs` lists all of them."
        )


class Look:
    """A command that looks. It connects when it first needs to."""

    def __init__(self, loaded: Loaded, *, as_json: bool) -> None:
        self.loaded, self.as_json = loaded, as_json
        self._held = ExitStack()

    @functools.cached_property
    def cluster(self) -> Cluster:
        """The cluster that the settings name, with as many shards as it has. The embedded broker is started for it, if
        it has ever run here: the log outlives all processes."""
        settings = self.loaded.settings
        runs = settings.kafka.bootstrap_servers or embedded.status(settings.state_dir) is not None
        if not runs and not broker_directory(settings.state_dir).exists():
            raise NothingRuns(settings.state_dir)
        named = self._held.enter_context(connected(self.loaded))
        return replace(named, shards=shards_of(named, patience_s=10.0))

    @functools.cached_property
    def codec(self) -> Codec:
        return reading_codec(self.cluster)

    @functools.cached_property
    def model(self) -> ReadModel:
        """All that is known by now."""
        lease_ms = self.loaded.settings.coordinator.lease_ms
        model = self._held.enter_context(ReadModel(self.cluster, self.codec, lease_ms=lease_ms))
        model.catch_up()
        return model

    @functools.cached_property
    def past(self) -> Past:
        return self._held.enter_context(Past(self.cluster, self.codec))

    def unknown(self, job: str, answers: Answers | None = None, when: str = "") -> UnknownJob:
        near = answers.near(job) if answers is not None else self.model.near(job)
        told_of = any(each.entity.job == job for each in self.past.history(job))
        return UnknownJob(job, tuple(near), when, told_of)

    def close(self) -> None:
        self._held.close()


def _common(
    bootstrap_servers: BootstrapServers = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    changes: Changes = None,
    as_json: Json = False,
) -> Look:
    return Look(settings_for(config, changes, at_cluster(bootstrap_servers, state_dir)), as_json=as_json)


COMMON_NAMES = tuple(inspect.signature(_common).parameters)


def looks(command: Callable[Concatenate[Look, P], None]) -> Callable[..., None]:
    """The command with the common options added to its own, as typer wants to see them."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        look = _common(**{name: given.pop(name) for name in COMMON_NAMES})
        try:
            command(look, **given)  # type: ignore[call-arg]
        finally:
            look.close()

    own, common = parameters(command)[1:], parameters(_common)
    run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *common)}
    del run.__wrapped__
    return run
