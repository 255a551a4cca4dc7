"""The image that the brokers run from: the one that `DETENT_KAFKA_IMAGE` names, or our own, made without a registry.

Ours is made from what this machine has: a runtime cut from the JDK, the C libraries that it needs, busybox as the shell
and the jars of `events/kafka.jars.sha256`. It lies where things lie in the official image (`/opt/kafka/libs`, `java` on
the path), so that both are started in the same way. Its tag is a digest of all that goes into it: it is made once.

    python -m tests.containers.image
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import docker
from docker.errors import ImageNotFound

from events.errors import DetentError
from events.jars import KAFKA_JARS, fetch_jars
from events.java import find_java

REPOSITORY = "detent-test-kafka"
JAVA = "opt/java/openjdk"
LIBRARIES = "opt/kafka/libs"
# java.desktop is there for java.beans, which the broker's logging needs.
MODULES = (
    "java.base", "java.desktop", "java.logging", "java.management", "java.naming", "java.security.jgss",
    "java.security.sasl", "java.sql", "java.xml", "jdk.crypto.ec", "jdk.management", "jdk.unsupported",
)  # fmt: skip
# What the runtime is linked with, and what the compression codecs inside the jars are.
LINKED = ("bin/java", "lib/server/libjvm.so", "lib/libjava.so", "lib/libnet.so", "lib/libnio.so", "lib/libzip.so")
FOR_CODECS = ("libstdc++.so.6", "libgcc_s.so.1")
APPLETS = ("sh", "cat", "grep", "kill", "ls", "ps", "sleep")
LIMIT_S = 300


class NoImage(DetentError):
    """The image can't be made here. The message says what is missing."""


def kafka_image() -> str:
    """The image to run brokers from. Our own is made when it is not there yet."""
    if chosen := os.environ.get("DETENT_KAFKA_IMAGE"):
        return chosen
    jdk, busybox = _find_jdk(), _find_busybox()
    name = f"{REPOSITORY}:{_digest(jdk, busybox)}"
    client = docker.from_env(timeout=LIMIT_S)
    try:
        client.images.get(name)
    except ImageNotFound:
        _make(client, name, jdk, busybox)
    finally:
        client.close()
    return name


def _find_jdk() -> Path:
    home = find_java().executable.parent.parent
    if not (home / "bin" / "jlink").exists() or not (home / "jmods").is_dir():
        raise NoImage(
            f"the broker's image can't be made: {home} is a Java without jlink and jmods. Install a whole JDK "
            "(Debian and Ubuntu: apt install openjdk-17-jdk-headless), or set DETENT_KAFKA_IMAGE to an image that "
            "your registry has, such as apache/kafka:4.3.1."
        )
    return home


def _find_busybox() -> Path:
    found = shutil.which("busybox")
    if found is None or _libraries_of(Path(found)):
        raise NoImage(
            "the broker's image can't be made: there is no static busybox on PATH. Install it (Debian and Ubuntu: "
            "apt install busybox-static), or set DETENT_KAFKA_IMAGE to an image that your registry has."
        )
    return Path(found)


def _digest(jdk: Path, busybox: Path) -> str:
    parts = [Path(__file__), KAFKA_JARS, jdk / "release", busybox]
    whole = hashlib.sha256(b"".join(hashlib.sha256(part.read_bytes()).digest() for part in parts))
    return whole.hexdigest()[:16]


def _make(client: docker.DockerClient, name: str, jdk: Path, busybox: Path) -> None:
    """One layer, handed to the engine as it is: no build, and so nothing to pull."""
    with tempfile.TemporaryDirectory(prefix="detent-image-") as directory:
        runtime, layer = Path(directory, "runtime"), Path(directory, "layer.tar")
        modules = ["--module-path", str(jdk / "jmods"), "--add-modules", ",".join(MODULES)]
        smaller = ["--strip-java-debug-attributes", "--no-header-files", "--no-man-pages"]
        _run([str(jdk / "bin" / "jlink"), *modules, *smaller, "--output", str(runtime)])
        _run([str(runtime / "bin" / "java"), "-Xshare:dump"])  # the JDK's own classes, loaded faster
        _write_layer(layer, runtime, busybox)
        repository, _, tag = name.partition(":")
        changes = [f"ENV PATH=/{JAVA}/bin:/bin"]
        client.api.import_image(str(layer), repository=repository, tag=tag, changes=changes)
    client.images.get(name)


def _write_layer(layer: Path, runtime: Path, busybox: Path) -> None:
    with tarfile.open(layer, "w", dereference=True) as tar:
        tar.add(runtime, JAVA, filter=lambda entry: None if entry.name == f"{JAVA}/legal" else entry)
        tar.add(fetch_jars(), LIBRARIES)
        for library in sorted(_libraries(runtime)):
            tar.add(library, str(library).lstrip("/"))
        tar.add(busybox, "bin/busybox")
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, "busybox", 0o777
            tar.addfile(link)
        temporary = tarfile.TarInfo("tmp")
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(temporary)


def _libraries(runtime: Path) -> set[Path]:
    """The machine's own libraries, at the places where the loader looks for them."""
    linked = set().union(*(_libraries_of(runtime / name) for name in LINKED))
    system = {path for path in linked if runtime not in path.parents}
    (c_library,) = (path for path in system if path.name == "libc.so.6")
    return system | {c_library.with_name(name) for name in FOR_CODECS}


def _libraries_of(binary: Path) -> set[Path]:
    said = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, timeout=LIMIT_S, check=False).stdout
    return {Path(os.path.normpath(path)) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said, re.MULTILINE)}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise NoImage(f"the broker's image can't be made: {command[0]} failed: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.stdout.write(f"{kafka_image()}\n")
