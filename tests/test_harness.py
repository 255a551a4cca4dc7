"""The benchmarks' harness: turns, medians, bars that can be missed."""

from __future__ import annotations

import json

import pytest

from bench.harness import Bar, Result, alternate, medians, ratio, report


def test_contenders_take_turns_and_the_warm_up_is_dropped() -> None:
    order: list[str] = []
    figures = {"a": iter([9.0, 1.0, 2.0, 3.0]), "b": iter([9.0, 2.0, 4.0, 6.0])}

    def contender(name: str) -> float:
        order.append(name)
        return next(figures[name])

    measured = alternate({"a": lambda: contender("a"), "b": lambda: contender("b")}, warmups=1, repetitions=3)
    assert "".join(order) == "abbaabba"
    assert measured == {"a": [1.0, 2.0, 3.0], "b": [2.0, 4.0, 6.0]}
    assert medians(measured) == {"a": 2.0, "b": 4.0}
    assert ratio(measured, "a", "b") == 0.5


@pytest.mark.parametrize(
    ("value", "relation", "bound", "met"),
    [(0.8, ">=", 0.8, True), (0.79, ">=", 0.8, False), (1.3, "<=", 1.3, True), (1.31, "<=", 1.3, False)],
)
def test_a_bar_is_met_or_missed(
    value: float, relation: str, bound: float, met: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Result(
        "x", {"per_s": 1234567.0, "note": "text"}, [Bar("good", 1, ">=", 0), Bar("b", value, relation, bound)]
    )
    assert report(result, as_json=True) == (0 if met else 1)
    printed = capsys.readouterr().out
    assert "1,234,567" in printed
    assert ("MISSED" in printed) is not met
    last = json.loads(printed.splitlines()[-1])
    assert last["bars"][1] == {"name": "b", "value": value, "relation": relation, "bound": bound, "met": met}
    assert last["figures"] == {"per_s": 1234567.0, "note": "text"}
