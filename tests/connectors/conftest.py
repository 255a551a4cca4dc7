"""What tests of sources and sinks are given: the Spark that all tests share, and a PostgreSQL."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.parts import ContextMaker
from tests.connectors.postgres import Postgres, a_postgres, binaries
from workers.spark.api import Context
from workers.spark.engine import SparkEngine
from workers.spark.session import Spark


@pytest.fixture(scope="session")
def spark(engine: SparkEngine) -> Spark:
    return engine._spark


@pytest.fixture
def a_context(spark: Spark, tmp_path: Path) -> ContextMaker:
    """Makes what a source or sink is given, each with a Spark session of its own."""

    def make(**more: Any) -> Context:
        session: list[Any] = []

        def own() -> Any:
            if not session:
                session.append(spark.session(120))
            return session[0]

        return Context(session=own, directory=tmp_path, now_ms=lambda: 0, **more)

    return make


@pytest.fixture(autouse=True)
def tidy_sockets() -> Iterator[None]:
    """PySpark leaves a socket to the collector after each `collect`. It is closed in the test that left it, where that
    is no error (parts.SPARK_SOCKETS)."""
    yield
    gc.collect()


@pytest.fixture(scope="package")
def postgres() -> Iterator[Postgres]:
    """Skipped where no PostgreSQL is installed; `.ci/run` installs it, and there it must be."""
    programs = binaries()
    if programs is None:
        missing = "PostgreSQL's server is not installed (Debian: apt install postgresql)"
        if os.environ.get("CI") or os.environ.get("DETENT_REQUIRE_POSTGRES"):
            pytest.fail(missing)
        pytest.skip(missing)
    with a_postgres(programs) as running:
        yield running
