"""The Docker engine of this machine: whether there is one, how testcontainers must talk to it, and what died here.

It never starts an engine: `.ci/run` does, and on a laptop the user.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import docker
from docker.errors import DockerException, NotFound
from testcontainers.core.config import ConnectionMode, testcontainers_config

from events.broker_settings import HOST
from events.embedded_guard import process_identity

OWNER = "detent.tests.owner"


def why_no_engine() -> str | None:
    """None where an engine answers; else what is wrong and what to do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the client forgets a socket that it could not connect
        missing = _ask_engine()
        gc.collect()
    return missing


def _ask_engine() -> str | None:
    try:
        client = docker.from_env(timeout=10)
        try:
            client.ping()
        finally:
            client.close()
    except DockerException as error:
        return f"no Docker engine answers ({error}): start one, or run .ci/run as root, which does"
    return None


def is_required(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether tests that need an engine may not be skipped: in CI, or when somebody says so."""
    return any(environment.get(name, "").lower() not in ("", "0", "false") for name in ("CI", "DETENT_REQUIRE_DOCKER"))


def set_up_testcontainers() -> None:
    """Its helper that cleans up is an image to be pulled, and inside a sandbox it takes itself for a container."""
    testcontainers_config.ryuk_disabled = True
    testcontainers_config.connection_mode_override = ConnectionMode.docker_host
    testcontainers_config.tc_host_override = HOST


def owner_label() -> dict[str, str]:
    """Which process a container or network belongs to."""
    return {OWNER: f"{os.getpid()} {_processes()} {process_identity(os.getpid())}"}


def remove_leftovers() -> list[str]:
    """Remove what test runs left that were killed before they could; their names."""
    client = docker.from_env(timeout=60)
    removed = []
    try:
        for container in client.containers.list(all=True, filters={"label": OWNER}):
            if not _is_owned(container.labels[OWNER]):
                container.remove(force=True, v=True)
                removed.append(str(container.name))
        for network in client.networks.list(filters={"label": OWNER}):
            if not _is_owned(network.attrs["Labels"][OWNER]):
                network.remove()
                removed.append(str(network.name))
    except NotFound:  # another run tidies up just now
        pass
    finally:
        client.close()
    return removed


def _is_owned(label: str) -> bool:
    pid, _, rest = label.partition(" ")
    processes, _, identity = rest.partition(" ")
    if processes != _processes():  # a run inside a container that shares the engine: not ours to judge
        return True
    return process_identity(int(pid)) == identity


def _processes() -> str:
    """Which set of processes our pids count in."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "pid:[all]"
