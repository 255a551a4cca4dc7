"""Detent for its users: the job specification, the Python client and the command line."""
