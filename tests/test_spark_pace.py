"""How slices grow and shrink, without Spark."""

from __future__ import annotations

import random

import pytest

from workers.spark.loop import brief
from workers.spark.pace import Pace


def run(pace: Pace, price_s: float, unit_s: float, slices: int = 40, seed: int = 0) -> list[float]:
    """How long slices take that cost so much."""
    rng, took = random.Random(seed), []
    for _ in range(slices):
        seconds = (price_s + pace.goal * unit_s) * rng.uniform(0.9, 1.1)
        took.append(seconds)
        pace.took(pace.goal, seconds)
    return took


@pytest.mark.parametrize("first", [1, 1000, 10_000_000])
@pytest.mark.parametrize("unit_s", [1e-6, 1e-4])
@pytest.mark.parametrize("price_s", [0.0, 0.1, 0.5])
def test_slices_come_to_take_about_the_target(first: int, unit_s: float, price_s: float) -> None:
    last = run(Pace(first, 1.5), price_s, unit_s)[-5:]
    assert min(last) > 0.5
    assert max(last) < 3.0


@pytest.mark.parametrize("first", [1, 1000, 1_000_000])
def test_a_price_above_the_target_never_starves_the_slices(first: int) -> None:
    pace = Pace(first, 0.3)
    last = run(pace, price_s=2.0, unit_s=1e-4)[-5:]
    assert pace.goal > 2000, "a tenth of the price, at least"
    assert max(last) < 12


def test_it_follows_when_rows_become_heavier_and_lighter() -> None:
    pace = Pace(1000, 1.5)
    run(pace, 0.1, 1e-5)
    assert max(run(pace, 0.1, 1e-3)[-5:]) < 3.0
    assert min(run(pace, 0.1, 1e-6)[-5:]) > 0.5


def test_a_source_with_little_to_read_changes_nothing() -> None:
    pace = Pace(1000, 1.5)
    for _ in range(10):
        pace.took(10, 0.05)
    assert pace.goal == 1000
    pace.took(0, 5.0)
    assert pace.goal == 1000


def test_an_error_of_java_can_be_told_of_when_java_is_gone() -> None:
    class OfJava(Exception):
        errmsg = "An error occurred while calling o1.save."

        def __str__(self) -> str:
            raise ConnectionRefusedError("nobody is there")

    assert brief(OfJava()) == "OfJava: An error occurred while calling o1.save. nobody is there"
