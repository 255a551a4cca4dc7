"""Detent for its users: the job specification, the Python client and the command line."""

from detent.jobs import Job

__all__ = ["Job"]
