"""Downloads jars with the Ivy that ships inside PySpark: no Maven, no other tool.

Ivy is told exact coordinates and may add nothing to them. It works in a folder of its own and touches
neither `~/.ivy2` nor `~/.m2`. What it brings is not to be trusted: `events.jars` checks every sum.

`DETENT_IVY_SETTINGS` may name an Ivy settings file, for a mirror instead of the public repository.
"""

from __future__ import annotations

import importlib.util
import os
import re
import select
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.sax.saxutils import quoteattr

from events.errors import DetentError
from events.java import find_java

SETTINGS_VARIABLE = "DETENT_IVY_SETTINGS"
# Ivy says something for every module and every few kilobytes; silence means a network that swallows packets.
SILENCE_LIMIT_S = 60.0
# `usepoms` and `checksums` off: nothing is resolved transitively and our own sums are stronger, so fetching
# POMs and SHA-1 files would only make it nine times slower. The resolver's root is Ivy's own default.
SETTINGS = """\
<ivysettings>
  <settings defaultResolver="public"/>
  <timeout-constraints>
    <timeout-constraint name="bounded" connectionTimeout="10000" readTimeout="30000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="public" m2compatible="true" usepoms="false" checksums="" timeoutConstraint="bounded"/>
  </resolvers>
</ivysettings>
"""


@dataclass(eq=False)
class NoIvy(DetentError):
    """PySpark, and with it Ivy, is missing."""

    looked_in: str

    def message(self) -> str:
        return (
            f"Ivy, which fetches the jars, was not found in {self.looked_in}. It comes with PySpark: run make setup, "
            "or install this package with its dependencies."
        )


@dataclass(eq=False)
class JarsUnavailable(DetentError):
    """The network or the repository did not give what was asked for."""

    title: str
    missing: tuple[str, ...]
    total: int
    reason: str

    def message(self) -> str:
        which = f"{len(self.missing)} of the {self.total} jars of {self.title}" if self.missing else self.title
        first = f" (the first: {self.missing[0]})" if self.missing else ""
        return (
            f"{which} could not be fetched{first}: {self.reason}. Check the network, then run it again. "
            "Behind a proxy, set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… -Dhttps.proxyPort=…'; "
            f"for a mirror, set {SETTINGS_VARIABLE} to an Ivy settings file."
        )


def fetch_with_ivy(title: str, coordinates: Sequence[str], directory: Path, fetched: Callable[[int], None]) -> None:
    """Put the jars of these `organisation:name:version` into the directory, telling how many have come."""
    work = directory / "ivy"
    work.mkdir()
    (work / "ivy.xml").write_text(_module_text(coordinates), "utf-8")
    (work / "settings.xml").write_text(SETTINGS, "utf-8")
    settings = os.environ.get(SETTINGS_VARIABLE)
    # Relative paths throughout: brackets in an absolute one would be read as part of Ivy's patterns.
    command = [
        *(find_java().executable, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", _find_ivy()),
        *("-settings", Path(settings).absolute() if settings else "settings.xml", "-ivy", "ivy.xml"),
        *("-cache", "cache", "-retrieve", "../[artifact]-[revision].[ext]"),
    ]
    output, code = _run(command, work, fetched)
    if code != 0:
        missing = tuple(_unresolved(output))
        raise JarsUnavailable(title, missing, len(coordinates), _reason(output, code))


def _module_text(coordinates: Sequence[str]) -> str:
    wanted = []
    for coordinate in coordinates:
        organisation, name, version = map(quoteattr, coordinate.split(":"))
        wanted.append(f'    <dependency org={organisation} name={name} rev={version} transitive="false"/>\n')
    return (
        '<ivy-module version="2.0">\n  <info organisation="detent" module="jars"/>\n  <dependencies>\n'
        f"{''.join(wanted)}  </dependencies>\n</ivy-module>\n"
    )


def _find_ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")  # finds, does not import
    if spec is None or spec.origin is None:
        raise NoIvy("this Python environment (there is no pyspark)")
    jars = Path(spec.origin).parent / "jars"
    found = sorted(jars.glob("ivy-*.jar"))
    if not found:
        raise NoIvy(str(jars))
    return found[-1]


def _run(command: Sequence[str | Path], work: Path, fetched: Callable[[int], None]) -> tuple[str, int | None]:
    """Run Ivy to its end, or to its silence (then there is no exit code)."""
    output = bytearray()
    with subprocess.Popen(
        command, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as ivy:
        assert ivy.stdout is not None
        try:
            while chunk := _read_some(ivy.stdout):
                output += chunk
                fetched(output.count(b"[SUCCESSFUL ]"))
            code = ivy.wait(SILENCE_LIMIT_S)
        except (TimeoutError, subprocess.TimeoutExpired):
            code = None
        finally:
            ivy.kill()
    return output.decode(errors="replace"), code


def _read_some(stream: IO[bytes]) -> bytes:
    readable, _, _ = select.select([stream], [], [], SILENCE_LIMIT_S)
    if not readable:
        raise TimeoutError
    return os.read(stream.fileno(), 65536)


def _unresolved(output: str) -> list[str]:
    """Ivy's summary has lines like `:: org#name;1.0: not found` and `:: org#name;1.0!name.jar`."""
    found = re.findall(r"^\s*:: ([^#\s]+)#([^;\s]+);([^:!\s]+)(?:!\S+|: .*)$", output, re.MULTILINE)
    return [":".join(parts) for parts in found]


def _reason(output: str, code: int | None) -> str:
    if code is None:
        return f"nothing came from the repository for {SILENCE_LIMIT_S:g} s"
    told = re.search(
        r"^\s*(Server access error.*|Host \S+ not found.*|.*Connection .*(?:refused|timed out).*)$",
        output,
        re.MULTILINE | re.IGNORECASE,
    )
    if told:
        return told[1].strip().rstrip(".")
    if "not found" in output:
        return "the repository does not have it"
    last = [line.strip() for line in output.splitlines() if line.strip()][-3:]
    return f"Ivy ended with code {code} ({' / '.join(last) or 'it said nothing'})"
