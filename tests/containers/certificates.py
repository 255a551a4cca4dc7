"""Certificates for one test run: an authority, and a broker's key that it signed. Made with the JDK's keytool."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from events.java import find_java

PASSWORD = "only-for-tests"  # of the key stores, which live as long as the test run
BROKER_NAME = "CN=broker"
KEY = ("-keyalg", "EC", "-groupname", "secp256r1", "-validity", "2")
LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the broker shows (`keystore`), what it trusts, and the authority as clients want it (PEM)."""

    keystore: Path
    truststore: Path
    authority: Path


def make_authority(directory: Path) -> Path:
    """An authority, as clients want it; its key is left in `broker.p12`."""
    store, authority = directory / "broker.p12", directory / "authority.pem"
    _keytool(store, "-genkeypair", "-alias", "authority", "-dname", "CN=authority", "-ext", "bc:c", *KEY)
    _keytool(store, "-exportcert", "-alias", "authority", "-rfc", "-file", str(authority))
    return authority


def make_certificates(directory: Path, hosts: list[str]) -> Certificates:
    """A new authority, and a broker's certificate for 127.0.0.1 and the named hosts."""
    made = Certificates(directory / "broker.p12", directory / "trusted.p12", make_authority(directory))
    names = ",".join(["ip:127.0.0.1", *(f"dns:{host}" for host in hosts)])
    _keytool(made.truststore, "-importcert", "-alias", "authority", "-noprompt", "-file", str(made.authority))
    _keytool(made.keystore, "-genkeypair", "-alias", "broker", "-signer", "authority", "-dname", BROKER_NAME,
             "-ext", f"san={names}", *KEY)  # fmt: skip
    # The broker shows any key that it finds in its store: it must not find the authority's.
    _keytool(made.keystore, "-delete", "-alias", "authority")
    return made


def _keytool(store: Path, *arguments: str) -> None:
    keytool = find_java().executable.with_name("keytool")
    command = [str(keytool), *arguments, "-keystore", str(store), "-storetype", "PKCS12", "-storepass", PASSWORD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"keytool {arguments[0]} failed: {done.stdout}{done.stderr}"
