"""From the text of a job file, YAML or JSON, to plain values, with the line and column of each.

Scalars mean what they look like, and no more: there are no dates, and a key is the text that was written, so that `on`
and `2024-01-01` stay what they are. Pure.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from coordinator.specification import Where

MAX_NODES = 200_000  # a few lines of aliases can stand for more than a machine has room for
MAX_DEPTH = 100
YAML = "tag:yaml.org,2002:"
TEXTS = frozenset({f"{YAML}str", f"{YAML}timestamp", f"{YAML}value"})
OTHERS = frozenset({f"{YAML}int", f"{YAML}float", f"{YAML}bool", f"{YAML}null"})


class Mark(NamedTuple):
    """Where something begins; both count from 1."""

    line: int
    column: int


class TextProblem(Exception):
    """Something that is no value, and where."""

    def __init__(self, reason: str, mark: Mark) -> None:
        super().__init__(reason)
        self.reason, self.mark = reason, mark


@dataclass
class Document:
    """The values of a file. `marks` has, by the way to it, where each value begins, and `keys` where its key does."""

    value: Any = None
    marks: dict[Where, Mark] = field(default_factory=dict)
    keys: dict[Where, Mark] = field(default_factory=dict)

    def place(self, at: Where) -> Mark:
        """Of a value, or of the nearest thing around it that is there."""
        while at:
            if at in self.marks:
                return self.marks[at]
            at = at[:-1]
        return self.marks.get((), Mark(1, 1))

    def key_place(self, at: Where) -> Mark:
        """Of the key of a value: what a wrong name is pointed at by."""
        return self.keys.get(at) or self.place(at)


def read_text(text: str, *, is_json: bool) -> Document:
    """Raises TextProblem."""
    if is_json:
        _check_json(text)
        text = text.replace("\t", " ")  # in JSON a tab is blank space or an error; YAML does not know it as the former
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        found = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise TextProblem(f"it is no YAML: {said}", _mark(found) if found else Mark(1, 1)) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise TextProblem(f"it is no YAML: {error}", Mark(1, 1)) from error
    if root is None:
        raise TextProblem("it is empty; a job has `source` and `sink` at least", Mark(1, 1))
    reader = _Reader(loader)
    reader.document.value = reader.value(root, ())
    return reader.document


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise TextProblem(f"it is no JSON: {error.msg}", Mark(error.lineno, error.colno)) from error
    except RecursionError as error:
        raise TextProblem("it is nested too deeply", Mark(1, 1)) from error


class _Reader:
    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.document = Document()
        self._loader, self._nodes = loader, 0

    def value(self, node: yaml.Node, at: Where) -> Any:
        self._nodes += 1
        mark = self.document.marks[at] = _mark(node.start_mark)
        if self._nodes > MAX_NODES or len(at) > MAX_DEPTH:
            raise TextProblem(f"it has more than {MAX_NODES:,} values, or is nested deeper than {MAX_DEPTH}", mark)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, at)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*at, number)) for number, item in enumerate(node.value)]
        return self._scalar(node, mark)

    def _mapping(self, node: yaml.MappingNode, at: Where) -> dict[str, Any]:
        seen: dict[str, Mark] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{YAML}merge":
                before = seen.setdefault(key.value, _mark(key.start_mark))
                if before != _mark(key.start_mark):
                    reason = f"it has `{key.value}` twice; the first is on line {before.line}"
                    raise TextProblem(reason, _mark(key.start_mark))
        self._loader.flatten_mapping(node)  # `<<: *other`
        found: dict[str, Any] = {}
        for key, inner in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise TextProblem("it has a key that is no text", _mark(key.start_mark))
            where = (*at, key.value)
            self.document.keys[where] = _mark(key.start_mark)
            found[key.value] = self.value(inner, where)
        return found

    def _scalar(self, node: yaml.Node, mark: Mark) -> Any:
        if node.tag in TEXTS:
            return node.value
        if node.tag not in OTHERS:
            raise TextProblem(f"it has the tag {node.tag}, which means nothing here", mark)
        try:
            value = self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise TextProblem(f"it has {node.value!r}, which can't be read: {error}", mark) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise TextProblem(f"it has the number {node.value}, which JSON has not", mark)
        return value


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)
