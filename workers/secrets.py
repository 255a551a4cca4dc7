"""Secrets of a job: its specification names where they are, and only the worker that needs one looks there.

A reference is `{"secret": "env:NAME"}` (a variable of the worker's environment) or `{"secret": "file:/path"}` (a file
on it, without the line's end). What it stands for is never logged, never on the log, and is masked in what others say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from events.masking import MASK, SECRET_NAME
from workers.plan import OptionsRefused

SHORTEST_MASKED = 4  # masking every "a" of a message would leave nothing to read


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a secret is: env:NAME or file:/path."""

    secret: Annotated[str, Meta(pattern=r"^(env:.+|file:.+)$", description="env:NAME or file:/path, on the worker.")]


Scalar = str | int | float | bool
Properties = dict[str, Scalar | Secret]


class Secrets:
    """The secrets of one step, looked up as they are needed, and what they stand for kept out of messages."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._known: set[str] = set()

    def value(self, given: Scalar | Secret) -> Scalar:
        """What it is, or stands for. Raises OptionsRefused where it can't be had."""
        return self.text(given) if isinstance(given, Secret) else given

    def text(self, given: str | Secret) -> str:
        if not isinstance(given, Secret):
            return given
        found = self._found(given.secret)
        self._known.add(found)
        return found

    def values(self, given: Mapping[str, Scalar | Secret]) -> dict[str, Scalar]:
        """All of them. Raises OptionsRefused for a secret that is written out: it would stand on the log for ever."""
        for name, value in given.items():
            if SECRET_NAME.search(name) and isinstance(value, str):
                raise OptionsRefused(
                    f"{name!r} of {self._step!r} looks like a secret and is written out. Name where it is instead: "
                    f'{{"secret": "env:NAME"}} or {{"secret": "file:/path"}}, to be had on the workers'
                )
        return {name: self.value(value) for name, value in given.items()}

    def hide(self, text: str) -> str:
        """A message without the secrets that were looked up."""
        for known in self._known:
            if len(known) >= SHORTEST_MASKED:
                text = text.replace(known, MASK)
        return text

    def _found(self, reference: str) -> str:
        kind, _, name = reference.partition(":")
        if kind == "env":
            if name not in os.environ:
                raise OptionsRefused(f"the secret {reference!r} of {self._step!r} is not in the worker's environment")
            return os.environ[name]
        try:
            return Path(name).read_text("utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise OptionsRefused(f"the secret {reference!r} of {self._step!r} can't be read: {reason}") from error
