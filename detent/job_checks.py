"""What is wrong with a job, all of it at once: each problem with the way to the value it is about, and a suggestion
where a name looks misspelt. Knows the model (coordinator/specification.py) and the kinds; nothing of files. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from coordinator.specification import (
    MODES,
    Specification,
    SpecificationError,
    Where,
    placed_steps,
    plan,
)
from detent.job_kinds import ROLES, kinds, names
from events.masking import SECRET_NAME

# Options that hold properties of something else, passwords among them.
SECRETIVE = frozenset({"properties", "catalog", "options"})


class Wrong(NamedTuple):
    """One problem. `of_key`: it is the name that is wrong, not the value."""

    at: Where
    reason: str
    of_key: bool = False


def normal(value: Any) -> Any:
    """The job as the model has it: a single `from` may be written without its list."""
    if not isinstance(value, dict):
        return value
    found = dict(value)
    for role in ROLES:
        if isinstance(steps := found.get(role), list):
            found[role] = [_normal_step(step) for step in steps]
    return found


def _normal_step(step: Any) -> Any:
    return step | {"from": [step["from"]]} if isinstance(step, dict) and isinstance(step.get("from"), str) else step


def problems(value: Any) -> list[Wrong]:
    """Everything that is wrong with a job in its normal form; nothing for one that can be submitted."""
    found = list(_mismatches(value, inspect.type_info(Specification), ()))
    if isinstance(value, dict):
        found += [wrong for role in ROLES for wrong in _steps(role, value.get(role))]
    if not found:
        found += _meaning(value)
    return found


def _meaning(value: dict[str, Any]) -> Iterator[Wrong]:
    """What only the whole tells: names that lead nowhere, bounds, circles."""
    try:
        plan(msgspec.json.encode(value).decode())
    except SpecificationError as error:
        reason = error.reason
        if len(error.at) == 4 and error.at[2] == "from":  # a name that is not there
            steps = placed_steps(msgspec.convert(value, Specification))
            known = [step.name for at, step in steps if at[0] != "sink" and at != error.at[:2]]
            wanted = value[str(error.at[0])][error.at[1]]["from"][error.at[3]]
            reason += _meant(wanted, known).rstrip(".")
        elif error.at == ("env", "mode"):
            reason += _meant(str(value["env"]["mode"]).upper(), MODES).rstrip(".")
        yield Wrong(error.at, reason)


def _steps(role: str, steps: Any) -> Iterator[Wrong]:
    for number, step in enumerate(steps if isinstance(steps, list) else []):
        if isinstance(step, dict) and isinstance(step.get("kind"), str):
            yield from _step(role, step, (role, number))


def _step(role: str, step: dict[str, Any], at: Where) -> Iterator[Wrong]:
    kind = kinds().get((role, step["kind"]))
    if kind is None:
        listed = ", ".join(names(role)) or "none yet"
        reason = f"there is no kind of {role} {step['kind']!r}{_meant(step['kind'], names(role))} Kinds: {listed}"
        yield Wrong((*at, "kind"), reason)
        return
    options = step.get("options", {})
    if not isinstance(options, dict):
        return  # it is said already
    where = (*at, "options")
    found = [*_mismatches(options, inspect.type_info(kind.options), where), *_written_out(options, where)]
    yield from found
    if not found:
        try:
            msgspec.convert(options, kind.options)
        except msgspec.ValidationError as error:
            yield _located(str(error), where)


def _written_out(options: dict[str, Any], at: Where) -> Iterator[Wrong]:
    """A secret in a specification would stand on the log for ever, for whoever reads it."""
    for table in SECRETIVE & options.keys():
        for name, value in options[table].items() if isinstance(options[table], dict) else ():
            if SECRET_NAME.search(name) and isinstance(value, str):
                reason = 'it looks like a secret and is written out; name where it is on the workers: {"secret": '
                yield Wrong((*at, table, name), reason + '"env:NAME"} or {"secret": "file:/path"}')


def _located(said: str, at: Where) -> Wrong:
    """The decoder's word, ``Expected `int` >= 0 - at `$.rows```, with its place as ours."""
    reason, found, way = said.partition(" - at `$")
    parts: list[str | int] = []
    for number, name in re.findall(r"\[(\d+)\]|\.?([^.\[\]`]+)", way.removesuffix("`")):
        parts.append(int(number) if number else name)
    return Wrong((*at, *parts), f"it can't be used: {reason}" if found else f"it can't be used: {said}")


def _mismatches(value: Any, kind: inspect.Type, at: Where) -> Iterator[Wrong]:
    """Where a value is not of its type, down to the single field."""
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.StructType):
        yield from _struct(value, kind, at)
    elif isinstance(kind, inspect.ListType) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _mismatches(item, kind.item_type, (*at, number))
    elif isinstance(kind, inspect.DictType) and isinstance(value, dict):
        for key, item in value.items():
            yield from _mismatches(item, kind.value_type, (*at, key))
    elif isinstance(kind, inspect.UnionType):
        structs = [t for t in kind.types if isinstance(t, inspect.StructType)]
        if len(structs) == 1 and isinstance(value, dict):
            yield from _mismatches(value, structs[0], at)
        elif all(list(_mismatches(value, one, at)) for one in kind.types):
            yield Wrong(at, f"it is {_shown(value)}; it may be {' or '.join(map(_type_name, kind.types))}")
    elif not _fits(value, kind):
        yield Wrong(at, f"it is {_shown(value)}; it may be {_type_name(kind)}")


def _struct(value: Any, kind: inspect.StructType, at: Where) -> Iterator[Wrong]:
    if not isinstance(value, dict):
        yield Wrong(at, f"it is {_shown(value)}; it has the fields {', '.join(f.encode_name for f in kind.fields)}")
        return
    fields = {field.encode_name: field for field in kind.fields}
    for name, inner in value.items():
        if name in fields:
            yield from _mismatches(inner, fields[name].type, (*at, name))
        else:
            known = f"Known: {', '.join(fields)}" if fields else "There are none"
            yield Wrong((*at, name), f"it is not known{_meant(name, fields)} {known}", of_key=True)
    for name, field in fields.items():
        if field.required and name not in value:
            yield Wrong(at, f"it lacks `{name}`")


def _fits(value: Any, kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.AnyType):
        return True
    if isinstance(kind, inspect.LiteralType):
        return value in kind.values
    if isinstance(kind, inspect.BoolType):
        return isinstance(value, bool)
    if isinstance(kind, inspect.IntType):
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, inspect.FloatType):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, inspect.StrType):
        return isinstance(value, str)
    if isinstance(kind, inspect.NoneType):
        return value is None
    return not isinstance(kind, inspect.ListType | inspect.DictType)  # of others the decoder tells


def _type_name(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(map(str, kind.values))
    named = {
        inspect.BoolType: "true or false", inspect.IntType: "a whole number", inspect.FloatType: "a number",
        inspect.StrType: "text", inspect.NoneType: "null", inspect.ListType: "a list", inspect.DictType: "a mapping",
        inspect.StructType: "a mapping",
    }  # fmt: skip
    return named.get(type(kind), "something else")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"


def _meant(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else "."
