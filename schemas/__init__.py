"""The Avro schemas: one record a file, the one place where the shape of a record is said.

Loads them and makes each self-contained. It must never hold a schema of its own.
"""

from __future__ import annotations

import functools
import json
import keyword
from importlib import resources
from typing import Any

Schema = dict[str, Any]
NAMESPACE = "detent"


@functools.cache
def files() -> dict[str, Schema]:
    """Every schema as it stands in its file, by full name."""
    found = {}
    for path in sorted(resources.files(__name__).iterdir(), key=lambda p: p.name):
        if path.name.endswith(".avsc"):
            schema = json.loads(path.read_text(encoding="utf-8"))
            found[f"{schema['namespace']}.{schema['name']}"] = schema
    return found


def python_name(field: str) -> str:
    """A field's name in Python, where `from` can't be one."""
    return field + "_" if keyword.iskeyword(field) else field


def self_contained(name: str) -> Schema:
    """The schema with every record it refers to written out at its first use, as Avro wants it."""
    written: set[str] = set()

    def write_out(part: Any) -> Any:
        if isinstance(part, str) and part in files():
            return part if part in written else write_out(files()[part])
        if isinstance(part, list):
            return [write_out(branch) for branch in part]
        if isinstance(part, dict):
            if part.get("type") == "record":
                written.add(f"{part['namespace']}.{part['name']}")
                fields = [field | {"type": write_out(field["type"])} for field in part["fields"]]
                return part | {"fields": fields}
            return {k: write_out(v) if k in ("items", "values", "type") else v for k, v in part.items()}
        return part

    contained: Schema = write_out(name)
    return contained
