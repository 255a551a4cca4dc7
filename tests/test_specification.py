"""Specifications: what is wrong with one is said, field by field; a good one becomes pipelines and tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.specification import SpecificationError, plan

IN, OUT = {"name": "in", "kind": "files"}, {"name": "out", "kind": "files", "from": ["in"]}


def body(**parts: Any) -> str:
    return json.dumps({"source": [IN], "sink": [OUT]} | parts)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "can't be read"),
        ("{}", "missing required field `source`"),
        (body(sources=[]), "unknown field `sources`"),
        (body(env={"interval": 5}), r"unknown field `interval` - at `\$.env`"),
        (body(sink=[]), "sink is empty"),
        (body(source=[]), "source is empty"),
        (body(env={"parallelism": 0}), "env.parallelism is 0; it may be 1 to 10000"),
        (body(env={"parallelism": 10_000_000}), "env.parallelism is 10000000"),
        (body(source=[IN | {"parallelism": -1}]), "parallelism of source 'in' is -1"),
        (body(env={"checkpoint": {"interval_ms": -5}}), "env.checkpoint.interval_ms is -5; it may be 1 to"),
        (body(env={"cleanup_delay_ms": -1}), "env.cleanup_delay_ms is -1"),
        (body(env={"mode": "FAST"}), "env.mode is 'FAST'; it may be BATCH or STREAMING"),
        (body(env={"restart": {"retries": "three"}}), "Expected `int`, got `str`"),
        (body(source=[IN | {"name": "x" * 1_000_000}]), "must have 1 to 512 bytes|more than"),
        (body(source=[IN | {"name": "x" * 2_000_000}]), "more than 1,048,576 bytes"),
        (body(source=[IN, IN]), "two steps are called 'in'"),
        (body(sink=[OUT | {"from": ["nobody"]}]), "'out' reads from 'nobody', which is not there"),
        (body(sink=[OUT | {"from": []}]), "'out' has no `from`"),
        (body(source=[IN | {"from": ["out"]}]), "source 'in' has `from`"),
        (body(sink=[OUT, {"name": "o2", "kind": "files", "from": ["out"]}]), "'o2' reads from the sink 'out'"),
        (body(transform=[{"name": "t", "kind": "s", "from": ["u"]}, {"name": "u", "kind": "s", "from": ["t", "in"]}]),
         "t, u read from each other in a cycle"),
        (body(source=[IN, {"name": "alone", "kind": "files"}]), "nothing that source 'alone' reads reaches a sink"),
        (body(source=[{"name": f"s{i}", "kind": "x", "parallelism": 10_000} for i in range(11)],
              sink=[OUT | {"from": [f"s{i}" for i in range(11)]}]), "the job has 110,000 tasks"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(SpecificationError, match=says):
        plan(text)


def test_a_graph_is_cut_into_pipelines() -> None:
    sources = [{"name": name, "kind": "files", "parallelism": n} for name, n in (("a", 2), ("b", 3), ("c", 0))]
    joined = {"name": "t", "kind": "sql", "from": ["a", "b"]}
    sinks = [{"name": "x", "kind": "files", "from": ["t"]}, {"name": "y", "kind": "files", "from": ["c"]}]
    planned = plan(body(source=sources, transform=[joined], sink=sinks, env={"parallelism": 4}))
    assert planned.tasks == (5, 4)
    assert planned.env.restart.retries == 3
