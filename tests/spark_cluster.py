"""A Spark standalone cluster on this machine, from the jars that come with PySpark: a master and a worker, each on a
port of its own choice. Or a Spark Connect server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from bench.fleet import _die_with_us, until
from events.java import find_java
from tests.jvm import QUICK

HERE = "127.0.0.1"
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True)
class SparkCluster:
    address: str
    worker: int  # its process: executors are children of it, and end with it


@contextmanager
def a_spark_cluster(directory: Path, cores: int = 2, memory: str = "512m") -> Iterator[SparkCluster]:
    work = directory / "work"
    with ExitStack() as stack:
        _, log = stack.enter_context(_daemon(directory, "master", MASTER, "--port", "0"))
        address = _said(log, r"Starting Spark master at (spark://\S+)")
        given = ["--port", "0", "--cores", str(cores), "--memory", memory, "--work-dir", str(work), address]
        worker, log = stack.enter_context(_daemon(directory, "worker", WORKER, *given))
        _said(log, "(Successfully registered with master)")
        yield SparkCluster(address, worker)


@contextmanager
def a_connect_server(directory: Path) -> Iterator[str]:
    """Its address, as a master is named."""
    submit = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "512m"]
    conf = {
        "spark.connect.grpc.binding.address": HERE, "spark.connect.grpc.binding.port": "0", "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": QUICK, "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }  # fmt: skip
    given = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    with _running(directory, "connect", [*submit, *given, "--class", CONNECT, "spark-internal"]) as (_, log):
        yield "sc://" + _said(log, r"Spark Connect server started at: \S*?([\d.]+:\d+)")


@contextmanager
def _daemon(directory: Path, name: str, main: str, *arguments: str) -> Iterator[tuple[int, Path]]:
    """Its process and its log, while it runs."""
    java = [str(find_java().executable), "-Xmx160m", *QUICK.split(), "-cp", f"{HOME}/jars/*"]
    with _running(directory, name, [*java, main, "--host", HERE, "--webui-port", "0", *arguments]) as running:
        yield running


@contextmanager
def _running(directory: Path, name: str, command: list[str]) -> Iterator[tuple[int, Path]]:
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{name}.log"
    environment = os.environ | {"SPARK_LOCAL_IP": HERE, "SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13"}
    environment |= {"PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, env=environment, cwd=directory, preexec_fn=_die_with_us
        )
    try:
        yield process.pid, log
    finally:
        process.terminate()
        process.wait(30)


def _said(log: Path, pattern: str) -> str:
    def found() -> str:
        match = re.search(pattern, log.read_text(errors="replace"))
        return match.group(1) if match else ""

    return until(found, f"{pattern!r} in {log}")
