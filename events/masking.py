"""What may be shown of a value that may be a secret: by its name, and by what it looks like. Pure."""

from __future__ import annotations

import re

MASK = "********"

SECRET_NAME = re.compile(
    r"passw|passphrase|secret|credential|token|jaas|(private|access|account|api|ssl)\W?key(?!\W?(store|location))", re.I
)
# Of the Kafka client's SASL properties only these say nothing about who logs in, and how.
OPEN_NAMES = frozenset({"sasl.mechanism", "sasl.mechanisms"})
# -Djavax.net.ssl.trustStorePassword=…, or a connection string
SECRET_INSIDE = re.compile(r"(passw\w*|secret|token|credential)[\w.]*\s*=", re.I)
LOGIN_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+@")


def is_secret(name: str) -> bool:
    """Whether a property's name says that its value is for few eyes."""
    if name in OPEN_NAMES:
        return False
    return name.startswith("sasl.") or SECRET_NAME.search(name) is not None


def shown_entry(name: str, value: str) -> str:
    """A property's value as it may be shown."""
    return MASK if is_secret(name) or SECRET_INSIDE.search(value) else shown_text(value)


def shown_text(value: str) -> str:
    """A text as it may be shown: without the login of an address."""
    return LOGIN_IN_ADDRESS.sub(f"{MASK}@", value)
