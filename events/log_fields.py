"""Log lines with fields (shard, epoch, job, pipeline, task, attempt, worker) beside their text.

The API is the standard library's. Fields come in three ways, all of which `detent.logs` understands:

    LOG.warning("the leader is silent shard=%d epoch=%d", 3, 7)
    LOG.warning("the leader is silent", extra={"shard": 3, "epoch": 7})
    log = with_fields(LOG, shard=3, epoch=7)
    log.warning("the leader is silent")
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any


class FieldLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger all of whose lines carry some fields."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def with_fields(logger: logging.Logger | FieldLogger, **fields: object) -> FieldLogger:
    """The logger, with these fields on every line; on top of those that it already adds."""
    if isinstance(logger, FieldLogger):
        return FieldLogger(logger.logger, {**(logger.extra or {}), **fields})
    return FieldLogger(logger, fields)
