"""Detent for its users: the job specification, the Python client and the command line."""

from detent.async_client import AsyncClient
from detent.client import Client
from detent.jobs import Job

__all__ = ["AsyncClient", "Client", "Job"]
