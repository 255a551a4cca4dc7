"""Detent for its users: the job specification, the Python client and the command line."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detent.async_client import AsyncClient
    from detent.client import Client
    from detent.jobs import Job

__all__ = ["AsyncClient", "Client", "Job"]
_MODULES = {"AsyncClient": "detent.async_client", "Client": "detent.client", "Job": "detent.jobs"}


def __getattr__(name: str) -> Any:
    """Imported when asked for: the processes of a cluster need no client."""
    if name not in _MODULES:
        raise AttributeError(f"module 'detent' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
