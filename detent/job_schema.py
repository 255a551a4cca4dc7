"""The JSON Schema of job files and the page docs/jobs.md, both made from the model and the kinds.

python -m detent.job_schema           prints the schema
python -m detent.job_schema --page    prints the page
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from coordinator.specification import Environment, Part, Specification
from detent.job_kinds import ROLES, Kind, kinds
from workers.secrets import Secret

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """For editors and services: what a job file may say, with the options of every kind."""
    _, parts = msgspec.json.schema_components([Specification], ref_template="#/$defs/{name}")
    job = parts.pop("Specification")
    step = parts.pop("Step")
    step["properties"]["from"] = {
        "description": step["properties"]["from"]["description"],
        "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
    }
    job["properties"]["env"].pop("default", None)
    for part in parts.values():
        for field in part.get("properties", {}).values():
            if "$ref" in field:
                field.pop("default", None)
    for role in ROLES:
        parts[role] = _step_schema(role, step, parts)
        job["properties"][role] |= {"items": {"$ref": f"#/$defs/{role}"}}
        if role != "transform":
            job["properties"][role]["minItems"] = 1
    job["properties"] = {"name": {"type": "string", "description": "The job's id; the file's name without it."},
                         **job["properties"]}  # fmt: skip
    return {"$schema": DRAFT, **job, "title": "A job of Detent", "$defs": dict(sorted(parts.items()))}


def _step_schema(role: str, step: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    of_role = [kind for (of, _), kind in sorted(kinds().items()) if of == role]
    found = json.loads(json.dumps(step))
    found["title"] = role
    found["description"] = f"A {role}."
    found["properties"]["kind"]["enum"] = [kind.name for kind in of_role]
    if role == "source":
        del found["properties"]["from"]
    else:
        del found["properties"]["parallelism"]
        found["required"] = [*found["required"], "from"]
    choices = []
    for kind in of_role:
        _, components = msgspec.json.schema_components([kind.options], ref_template="#/$defs/{name}")
        options = components.pop(kind.options.__name__)
        name = f"{role}-{kind.name}"
        parts[name] = options | {"title": f"options of the {role} {kind.name}", "description": kind.says}
        for inner, one in components.items():
            if parts.setdefault(inner, one) != one:
                raise ValueError(f"two structs of options are called {inner}")
        needed = {"required": ["options"]} if options.get("required") else {}
        then = {"properties": {"options": {"$ref": f"#/$defs/{name}"}}, **needed}
        choices.append({"if": {"properties": {"kind": {"const": kind.name}}}, "then": then})
    if choices:
        found["allOf"] = choices
    return typing.cast(dict[str, Any], found)


def schema_text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """The reference of job files, for people."""
    lines = [
        "# Job files",
        "",
        "A job is a YAML or JSON file: what it reads (`source`), what becomes of it (`transform`), where it goes",
        "(`sink`) and how it runs (`env`). `detent validate job.yaml` tells what is wrong with one, with file, line,",
        "column and field; `schemas/job.schema.json` lets an editor do the same. Made from the model by `make docs`.",
        "",
        "```yaml",
        "name: hello                # the job's id; without it the file's name",
        "env: {parallelism: 2}",
        "source:",
        "  - {name: in, kind: generator, options: {rows: 100000}}",
        "sink:",
        "  - {name: out, kind: files, from: in, options: {path: out}}",
        "```",
        "",
        "A step names the steps that it reads with `from`: one name, or a list. Steps that are connected are a",
        "pipeline, which checkpoints by itself; a job may have several. Paths are those of the workers.",
        "",
        "A secret is never written out, for it would stand on the log: name where the workers find it,",
        '`{secret: "env:NAME"}` or `{secret: "file:/path"}`.',
        "",
        "## env",
        "",
        *_table(_fields(Environment, "")),
    ]
    for role in ROLES:
        lines += ["", f"## {role}", ""]
        for (of, _), kind in sorted(kinds().items()):
            if of == role and kind.engine != "trial":  # those are for tests
                lines += _kind(kind)
    return "\n".join(lines).rstrip() + "\n"


def _kind(kind: Kind) -> list[str]:
    rows = list(_fields(kind.options, ""))
    return [f"### {kind.name}", "", kind.says, "", *(_table(rows) if rows else ["It has no options."]), ""]


def _table(rows: typing.Iterable[tuple[str, str, str, str]]) -> list[str]:
    head = ["| name | type | default | what it is |", "|---|---|---|---|"]
    return head + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def _fields(part: type[msgspec.Struct], before: str) -> Iterator[tuple[str, str, str, str]]:
    for field in msgspec.structs.fields(part):
        kind, says = field.type, ""
        if typing.get_origin(kind) is Annotated:
            says = next((meta.description for meta in kind.__metadata__ if meta.description), "")
            kind = kind.__origin__
        if isinstance(kind, type) and issubclass(kind, Part):
            yield from _fields(kind, f"{before}{field.encode_name}.")
            continue
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        shown = "required" if default is msgspec.NODEFAULT else f"`{json.dumps(msgspec.to_builtins(default))}`"
        yield f"`{before}{field.encode_name}`", _type_name(kind), shown, says


def _type_name(kind: Any) -> str:
    plain = {int: "whole number", str: "text", bool: "true or false", float: "number", Any: "anything"}
    if kind in plain:
        return plain[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _type_name(inner[0])
    if origin is typing.Literal:
        return " or ".join(f"`{one}`" for one in inner)
    if origin in (list, tuple):
        return f"list of {_type_name(inner[0])}" if inner else "list"
    if origin is dict:
        return f"mapping to {_type_name(inner[1])}"
    if inner:
        return " or ".join(_type_name(one) for one in inner if one is not type(None))
    return "secret" if kind is Secret else "mapping"


if __name__ == "__main__":
    sys.stdout.write(page() if "--page" in sys.argv else schema_text())
