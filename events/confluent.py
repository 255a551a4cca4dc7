"""A schema registry of Confluent's kind, for services that already use one. Detent itself needs none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from confluent_kafka.schema_registry import Schema as RegisteredSchema
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

from events.errors import DetentError
from schemas import Schema

# The topic a record stands on, which names its subject in the registry.
TOPIC_OF = {"Command": "commands", "Event": "events", "Order": "orders", "Report": "reports", "Heartbeat": "workers",
            "Beat": "coordinators", "DeadLetter": "dead-letters"}  # fmt: skip


class ConfluentRegistry:
    """Numbers for schemas, from a registry at `url` (any setting of its client may be given)."""

    def __init__(self, settings: Mapping[str, Any], *, prefix: str = "detent") -> None:
        self._client = SchemaRegistryClient.new_client(dict(settings))
        self._prefix = prefix

    def id_of(self, name: str, schema: Schema) -> int:
        subject = f"{self._prefix}.{TOPIC_OF[name]}-value"
        try:
            return int(self._client.register_schema(subject, RegisteredSchema(json.dumps(schema), "AVRO")))
        except SchemaRegistryError as error:
            raise DetentError(f"the schema registry does not take {name} as {subject}: {error}") from error

    def schema_of(self, schema_id: int) -> Schema:
        try:
            found = self._client.get_schema(schema_id)
        except SchemaRegistryError as error:
            raise LookupError(str(error)) from error
        schema: Schema = json.loads(found.schema_str or "null")
        return schema
