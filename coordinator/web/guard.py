"""Who may ask what: tokens and their roles, names that the server answers to, and pages of others that must not act
here in a reader's name. Pure: it looks at headers and says yes or no.

A browser sends what any page tells it to, to any address that it can reach; what it does not let a foreign page do is
set a header of its own, send JSON, or lie about `Host`, `Origin` and `Sec-Fetch-Site`. That is what this builds on.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from events.errors import DetentError

OWN_HEADER = "x-detent-request"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LEAST_TOKEN = 16


class OpenToTheWorld(DetentError):
    """An address that others can reach, and no token."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"web.host is {host}, which others can reach, and there is no token: anybody could cancel any job. Put a "
            "token of at least 16 characters into a file and set web.token_file to it, or listen on 127.0.0.1"
        )
        self.host = host


class WeakToken(DetentError):
    """A token that can be guessed, or that says nothing about its role."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"the token of {setting} {reason}")
        self.setting, self.reason = setting, reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not answered, as an HTTP status and a sentence."""

    status: int
    title: str
    detail: str


@dataclass(frozen=True)
class Guard:
    """What is asked of every request. Tokens are never shown."""

    host: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    operate_token: str = field(default="", repr=False)
    read_token: str = field(default="", repr=False)

    def check(self) -> None:
        """Raises OpenToTheWorld or WeakToken: before anything listens."""
        if not is_loopback(self.host) and not (self.operate_token or self.read_token):
            raise OpenToTheWorld(self.host)
        for setting, token in (("web.token_file", self.operate_token), ("web.read_token_file", self.read_token)):
            if token and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
                raise WeakToken(setting, f"is not {LEAST_TOKEN} or more printable ASCII characters; make a longer one")
        if self.operate_token and hmac.compare_digest(self.operate_token, self.read_token):
            raise WeakToken("web.read_token_file", "is the same as that of web.token_file; choose another one")

    @property
    def asks_for_token(self) -> bool:
        return bool(self.operate_token or self.read_token)

    @property
    def only_reads(self) -> bool:
        """Nobody can operate here."""
        return bool(self.read_token) and not self.operate_token

    def refusal(self, method: str, headers: Mapping[str, str], *, opens: bool = False) -> Refusal | None:
        """Why a request is refused; None when it may pass. `opens`: it asks for what holds no data (the page's own
        files, whether the process lives) and needs no token. Names of headers are in lower case."""
        if (refused := self._strange_name(headers)) or (refused := self._strange_page(method, headers)):
            return refused
        role = self.role(headers)
        if role == "" and not opens:
            detail = (
                "send the header `Authorization: Bearer <token>` with the token of the file that the server was given"
            )
            return Refusal(401, "A token is needed", detail)
        if method in SAFE_METHODS:
            return None
        if role != "operate":
            detail = "this token may only look; commands need the token of web.token_file"
            return Refusal(403, "Not allowed to operate", detail)
        return self._unmeant(headers)

    def role(self, headers: Mapping[str, str]) -> str:
        """`operate`, `read`, or empty for whoever is nobody."""
        if not self.asks_for_token:
            return "operate"
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip().encode(errors="replace") if scheme.lower() == "bearer" else b""
        # Both are compared, whatever the first says: how long it takes tells nothing.
        operates = hmac.compare_digest(given, self.operate_token.encode()) and bool(self.operate_token)
        reads = hmac.compare_digest(given, self.read_token.encode()) and bool(self.read_token)
        return "operate" if operates else "read" if reads else ""

    def _strange_name(self, headers: Mapping[str, str]) -> Refusal | None:
        """A page whose name leads to this address (DNS rebinding) would be of the same origin; its name gives it
        away."""
        name = _name_of(headers.get("host", ""))
        if name is not None and (name in self.names or name == self.host.lower() or _is_literal(name)):
            return None
        asked = headers.get("host", "")[:200]
        detail = f"this server is not called {asked!r}; names besides its address are set by web.names"
        return Refusal(421, "Wrong host", detail)

    def _strange_page(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        if method in SAFE_METHODS:
            return None
        origin = headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
        if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return Refusal(403, "Foreign page", "commands are taken from this server's own page, or from programs")
        return None

    def _unmeant(self, headers: Mapping[str, str]) -> Refusal | None:
        """A form of a foreign page can send neither JSON nor a header."""
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "JSON is needed", "send the header `Content-Type: application/json`")
        if "authorization" not in headers and OWN_HEADER not in headers:
            detail = f"send the header `{OWN_HEADER}: 1` (or a token): it shows that no foreign page is asking"
            return Refusal(403, "A header is missing", detail)
        return None


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str | None:
    """The name in a `Host` header, without its port; None for what is none."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname if parts.port != -1 and not (parts.path or parts.username) else None
    except ValueError:
        return None


def _is_literal(name: str) -> bool:
    """An address, or localhost: no name service is asked for it, so nobody can have pointed it here."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
