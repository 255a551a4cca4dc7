"""Finds the Java that the embedded broker, the jar fetcher and Spark run on.

It takes what `JAVA_HOME` says, then the first `java` on `PATH`, as Spark does, and checks its version.
It must never install anything, and never pick another Java than the one the user pointed to.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from events.errors import DetentError

OLDEST_VERSION = 17
CRASHED = "A fatal error has been detected by the Java Runtime Environment"  # in what it says when it does
INSTALL_HINT = (
    f"Install a JDK {OLDEST_VERSION} or newer (Debian and Ubuntu: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to one."
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough."""

    executable: Path
    version: str


@dataclass(eq=False)
class NoJava(DetentError):
    """There is no Java to run."""

    java_home: str | None

    def message(self) -> str:
        home = f"JAVA_HOME ({self.java_home}) holds no bin/java" if self.java_home else "JAVA_HOME is not set"
        return f"no Java was found: {home}, and there is no java on PATH. {INSTALL_HINT}"


@dataclass(eq=False)
class JavaTooOld(DetentError):
    """There is a Java, but Kafka and Spark do not run on it."""

    executable: Path
    version: str

    def message(self) -> str:
        return f"{self.executable} is Java {self.version}; version {OLDEST_VERSION} or newer is needed. {INSTALL_HINT}"


@dataclass(eq=False)
class JavaUnusable(DetentError):
    """There is a Java, but it does not even tell its version."""

    executable: Path
    reason: str

    def message(self) -> str:
        return f"{self.executable} does not tell its version: {self.reason}. {INSTALL_HINT}"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to use, or an error that says what is missing."""
    environment = os.environ if environment is None else environment
    java_home = environment.get("JAVA_HOME") or None
    found = shutil.which("java", path=f"{java_home}/bin") if java_home else None
    found = found or shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise NoJava(java_home)
    java = _from_release_file(Path(found).resolve()) or _from_asking(Path(found))
    if _feature_version(java.version) < OLDEST_VERSION:
        raise JavaTooOld(java.executable, java.version)
    return java


def _from_release_file(executable: Path) -> Java | None:
    """Reading the JDK's `release` file spares a JVM start on every run."""
    try:
        release = (executable.parent.parent / "release").read_text("utf-8", errors="replace")
    except OSError:
        return None
    version = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    return Java(executable, version[1]) if version else None


def _from_asking(executable: Path) -> Java:
    """For version managers' wrappers: what they start is asked where it lives.

    The real executable is what must be run, since a wrapper may leave us with the pid of a shell.
    """
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaUnusable(executable, str(error)) from error
    properties = dict(re.findall(r"^\s+(java\.home|java\.version) = (.+)$", answer.stderr, re.MULTILINE))
    if "java.version" not in properties:
        first = (answer.stderr or answer.stdout).strip().partition("\n")[0]
        raise JavaUnusable(executable, first or f"it ended with code {answer.returncode} and said nothing")
    real = Path(properties.get("java.home", "")) / "bin" / "java"
    return Java(real if real.is_file() else executable, properties["java.version"])


def _feature_version(version: str) -> int:
    """17 for "17.0.15", 8 for the old style "1.8.0_392"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
