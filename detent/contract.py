"""The AsyncAPI document of Detent's topics, made from the schemas: docs/asyncapi.yaml.

python -m detent.contract     prints it
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any, NamedTuple

import yaml

import schemas
from events.topics import TopicSettings, plans

AVRO = "application/vnd.apache.avro+json;version=1.9.0"


class Channel(NamedTuple):
    """A topic as its users see it. `action` is what Detent does there."""

    topic: str
    record: str
    key: str
    action: str
    says: str


CHANNELS = (
    Channel("commands", "Command", "The job's id.", "receive", "What services ask for."),
    Channel("events", "Event", "The entity, such as job/hello or task/hello/0/1.", "send",
            "Every transition of every entity, with its whole state. A record without a value is a deletion."),
    Channel("reports", "Report", "The job's id.", "receive", "What workers say of their tasks."),
    Channel("orders", "Order", "worker/job/pipeline/task", "send", "What workers are to do."),
    Channel("workers", "Heartbeat", "The worker's id.", "receive", "What workers run, and how far they are."),
    Channel("coordinators", "Beat", "The coordinator's id.", "send", "Which coordinators live, and what they lead."),
    Channel("dead-letters", "DeadLetter", "topic/partition/offset of the record.", "send",
            "Records that could not be used, whole."),
)  # fmt: skip


def document() -> dict[str, Any]:
    config = {plan.name: plan for plan in plans(TopicSettings())}
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for channel in CHANNELS:
        plan = config[channel.topic]
        channels[channel.topic] = {
            "address": f"{{prefix}}.{channel.topic}",
            "description": channel.says,
            "parameters": {"prefix": {"$ref": "#/components/parameters/prefix"}},
            "messages": {channel.record: {"$ref": f"#/components/messages/{channel.record}"}},
            "bindings": {"kafka": {"topicConfiguration": {"cleanup.policy": [plan.exactly["cleanup.policy"]]}}},
        }
        messages[channel.record] = {
            "name": channel.record,
            "contentType": "application/avro",
            "description": schemas.files()[f"{schemas.NAMESPACE}.{channel.record}"]["doc"],
            "bindings": {"kafka": {"key": {"type": "string", "description": channel.key}}},
            "payload": {
                "schemaFormat": AVRO,
                "schema": schemas.self_contained(f"{schemas.NAMESPACE}.{channel.record}"),
            },
        }
        operations[f"{channel.action}{channel.record}"] = {
            "action": channel.action,
            "channel": {"$ref": f"#/channels/{channel.topic}"},
            "summary": channel.says,
        }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Detent",
            "version": version("detent"),
            "description": "The topics of Detent. Values are in Avro single-object encoding; docs/contract.md says how "
            "to use them from any language.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/avro",
        "channels": channels,
        "operations": operations,
        "components": {
            "parameters": {"prefix": {"description": "kafka.topic_prefix", "default": "detent"}},
            "messages": messages,
        },
    }


def text() -> str:
    plain = json.loads(json.dumps(document()))  # so that nothing is written as an alias of something else
    head = "# Made from schemas/*.avsc by `make docs`; a test keeps it current.\n"
    return head + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)


if __name__ == "__main__":
    sys.stdout.write(text())
