"""Writes events/records.py from the schemas, so that a record's shape is said once. `make records` runs it.

A test fails when the file is not what this would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import schemas
from schemas import python_name

TARGET = Path(__file__).parent.parent / "events" / "records.py"
WIDTH = 120
PRIMITIVES = {
    "long": "int",
    "int": "int",
    "string": "str",
    "bytes": "bytes",
    "boolean": "bool",
    "null": "None",
}

HEAD = '''"""The typed records of every topic. Generated from schemas/*.avsc by `make records`; do not edit.

Values: frozen, compared by content, safe to share between threads.
"""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True, tag_field="type"):
    """What all records are. As JSON, each says its type."""
'''


def python_type(avro: Any) -> str:
    if isinstance(avro, list):
        return " | ".join(sorted((python_type(branch) for branch in avro), key=lambda t: t == "None"))
    if isinstance(avro, dict) and avro["type"] == "array":
        return f"tuple[{python_type(avro['items'])}, ...]"
    if isinstance(avro, dict) and avro["type"] == "map":
        return f"dict[str, {python_type(avro['values'])}]"
    name = avro["type"] if isinstance(avro, dict) else avro
    return PRIMITIVES.get(name) or name.removeprefix(f"{schemas.NAMESPACE}.")


def python_default(field: dict[str, Any]) -> str:
    """The right-hand side of a field, empty when it has none."""
    name, default = field["name"], None
    if "default" in field:
        value = field["default"]
        if field["type"] == "bytes":
            default = f'b"{value}"'
        elif isinstance(value, list):
            default = "()"
        elif isinstance(value, dict):
            default = "msgspec.field(default_factory=dict)"
        else:
            default = '""' if value == "" else f'"{value}"' if isinstance(value, str) else repr(value)
    if python_name(name) != name:
        return f' = msgspec.field(name="{name}"{f", default={default}" if default else ""})'
    return f" = {default}" if default else ""


def wrapped(text: str, indent: str) -> list[str]:
    """Comment lines of the house's width."""
    lines, line = [], ""
    for word in text.split():
        if line and len(indent) + len(line) + len(word) + 3 > WIDTH:
            lines.append(f"{indent}# {line}")
            line = ""
        line = f"{line} {word}".strip()
    return [*lines, f"{indent}# {line}"]


def docstring(doc: str) -> list[str]:
    one = f'    """{doc}"""'
    if len(one) <= WIDTH:
        return [one]
    first, rest = doc.split(". ", 1)
    return [f'    """{first}.', "", *(line.replace("# ", "", 1) for line in wrapped(rest, "    ")), '    """']


def in_order() -> list[dict[str, Any]]:
    """Records before the ones that refer to them, so that the file reads from the parts to the whole."""
    ordered: dict[str, dict[str, Any]] = {}

    def place(name: str) -> None:
        if name in ordered:
            return
        for other in schemas.files():
            if other != name and f"'{other}'" in repr(schemas.files()[name]["fields"]):
                place(other)
        ordered[name] = schemas.files()[name]

    for name in schemas.files():
        place(name)
    return list(ordered.values())


def union_name(record: dict[str, Any], field: dict[str, Any]) -> str | None:
    """A union of records gets a name of its own, such as EventState; any other type is written in place."""
    choice = isinstance(field["type"], list) and "null" not in field["type"]
    return record["name"] + field["name"].capitalize() if choice else None


def union(name: str, branches: list[str]) -> list[str]:
    first, *rest = (python_type(branch) for branch in branches)
    one = f"{name} = {' | '.join((first, *rest))}"
    if len(one) <= WIDTH:
        return ["", "", one]
    return ["", "", f"{name} = (", f"    {first}", *(f"    | {other}" for other in rest), ")"]


def render() -> str:
    lines = [HEAD.rstrip()]
    for record in in_order():
        for field in record["fields"]:
            if name := union_name(record, field):
                lines += union(name, field["type"])
        lines += ["", "", f"class {record['name']}(Record, frozen=True, kw_only=True):"]
        lines += [*docstring(record["doc"]), ""]
        for field in record["fields"]:
            lines += wrapped(field["doc"], "    ")
            kind = union_name(record, field) or python_type(field["type"])
            lines.append(f"    {python_name(field['name'])}: {kind}{python_default(field)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    TARGET.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
