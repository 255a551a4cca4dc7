"""A PostgreSQL of the tests' own, from the machine's binaries: free port, temporary directory, never as root."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

USER, PASSWORD = "detent", "hush-hush-hush"
ACCOUNT = "postgres"  # that Debian's package makes; the server refuses to run as root
SETTINGS = ("fsync=off", "max_connections=40", "shared_buffers=32MB", "listen_addresses=127.0.0.1")


def binaries() -> Path | None:
    """Where initdb and pg_ctl are, if anywhere."""
    found = shutil.which("initdb")
    candidates = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((path for path in candidates if (path / "initdb").exists() and (path / "pg_ctl").exists()), None)


@dataclass(frozen=True)
class Postgres:
    port: int

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def ask(self, sql: str, *given: Any) -> list[tuple[Any, ...]]:
        """By a driver that is not the one under test."""
        where = f"host=127.0.0.1 port={self.port} dbname=postgres user={USER} password={PASSWORD}"
        with psycopg.connect(where, autocommit=True) as connection:
            done = connection.execute(sql, given or None)  # type: ignore[call-overload]
            return list(done.fetchall()) if done.description else []

    def connect(self) -> psycopg.Connection[Any]:
        where = f"host=127.0.0.1 port={self.port} dbname=postgres user={USER} password={PASSWORD}"
        return psycopg.connect(where)

    def a_table(self, columns: str) -> str:
        name = f"t_{uuid.uuid4().hex[:10]}"
        self.ask(f"CREATE TABLE {name} ({columns})")
        return name

    def staged(self) -> list[str]:
        """Tables of pieces."""
        found = self.ask("SELECT tablename FROM pg_tables WHERE tablename LIKE 'detent\\_%\\_%\\_%'")
        return [name for (name,) in found]


@contextlib.contextmanager
def a_postgres(programs: Path) -> Iterator[Postgres]:
    directory = Path(tempfile.mkdtemp(prefix="detent-postgres-"))
    as_user = ["runuser", "-u", ACCOUNT, "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(directory, ACCOUNT)

    def run(*command: str | Path) -> None:
        done = subprocess.run([*as_user, *command], cwd=directory, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"

    data, password = directory / "data", directory / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    control = programs / "pg_ctl"
    try:
        run(programs / "initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", "--pwfile", password, "-N")
        options = " ".join([f"-p {port} -k {directory}", *(f"-c {each}" for each in SETTINGS)])
        run(control, "-D", data, "-w", "-t", "60", "-l", directory / "log", "-o", options, "start")
        yield Postgres(port)
    finally:
        if (data / "postmaster.pid").exists():
            run(control, "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(directory, ignore_errors=True)
