"""Why a command is not carried out."""

from __future__ import annotations


class Refused(Exception):
    """A command that is not carried out, and why."""
