"""A task's rows on their way from the source's slice to the sinks: SQL over named views, and functions in Python.

A task has the rows of one source. A step that reads from several gets those of its inputs that this source feeds, put
together by the columns' names; what another source feeds is another task's. All of it is lazy: no row moves here.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from workers.plan import OptionsRefused, Step, TaskPlan, options_of
from workers.spark.api import Refused
from workers.spark.kinds import TRANSFORMS, maker_of
from workers.spark.options import PythonOptions, SqlOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INPUT, PREVIOUS = "input", "previous"
Transform = Callable[[dict[str, "DataFrame"]], "DataFrame"]


class Graph:
    """What becomes of a slice: a frame for each sink that it reaches. Made once for an attempt; raises OptionsRefused
    and Refused, both lasting."""

    def __init__(self, plan: TaskPlan, session: SparkSession, allowed_modules: Sequence[str]) -> None:
        self._plan = plan
        self._transforms: dict[str, Transform] = {}
        reached = {plan.source.name}
        for step in plan.transforms:
            if reached.intersection(step.inputs):
                reached.add(step.name)
                self._transforms[step.name] = maker_of("transform", TRANSFORMS, step)(step, session, allowed_modules)
        self.sinks = [sink for sink in plan.sinks if reached.intersection(sink.inputs)]

    def frames(self, of_slice: DataFrame) -> dict[str, DataFrame]:
        """By the sink's name."""
        known = {self._plan.source.name: of_slice}
        for step in self._plan.transforms:
            if step.name in self._transforms:
                known[step.name] = self._transforms[step.name](_inputs(step, known))
        return {sink.name: together(sink, _inputs(sink, known)) for sink in self.sinks}


def _inputs(step: Step, known: dict[str, DataFrame]) -> dict[str, DataFrame]:
    return {name: known[name] for name in step.inputs if name in known}


def together(step: Step, frames: dict[str, DataFrame]) -> DataFrame:
    """Raises Refused where the inputs do not go together."""
    from pyspark.errors import AnalysisException

    try:
        return functools.reduce(lambda one, other: one.unionByName(other), frames.values())
    except AnalysisException as error:
        raise Refused(f"the inputs {', '.join(frames)} of {step.name!r} can't be put together: {error}") from error


def sql(step: Step, session: SparkSession, allowed_modules: Sequence[str]) -> Transform:  # noqa: ARG001  all are alike
    options = options_of(step, SqlOptions)
    queries = [options.query] if isinstance(options.query, str) else list(options.query)
    if not queries:
        raise OptionsRefused(f"transform {step.name!r} has no query")

    def named(name: str) -> bool:
        """Views cost something with each slice: only those are made that a query may mean."""
        return any(name.casefold() in query.casefold() for query in queries)

    def transform(frames: dict[str, DataFrame]) -> DataFrame:
        for name, frame in frames.items():
            if named(name):
                frame.createOrReplaceTempView(f"`{name.replace('`', '``')}`")
        result = together(step, frames)
        if named(INPUT):
            result.createOrReplaceTempView(INPUT)
        for query in queries:
            result = _query(step, session, query, frames)
            if named(PREVIOUS):
                result.createOrReplaceTempView(PREVIOUS)
        return result

    return transform


def _query(step: Step, session: SparkSession, query: str, frames: dict[str, DataFrame]) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return session.sql(query)
    except (AnalysisException, ParseException) as error:
        views = ", ".join([*frames, INPUT, PREVIOUS])
        raise Refused(
            f"transform {step.name!r} can't run its query: {error}. It has the views {views}; a task has the rows of "
            "one source, so that what other sources feed can't be joined here."
        ) from error


def python(step: Step, session: SparkSession, allowed_modules: Sequence[str]) -> Transform:  # noqa: ARG001  as above
    options = options_of(step, PythonOptions)
    function = find_function(step, options.function, allowed_modules)

    def transform(frames: dict[str, DataFrame]) -> DataFrame:
        from pyspark.sql import DataFrame as Frame

        result = function(together(step, frames), **options.arguments)
        if not isinstance(result, Frame):
            raise Refused(f"{options.function} of {step.name!r} gave {type(result).__name__}, and not a DataFrame")
        return result

    return transform


def find_function(step: Step, name: str, allowed: Sequence[str]) -> Callable[..., DataFrame]:
    """Raises OptionsRefused."""
    module, _, attribute = name.partition(":")
    if not any(module == each or module.startswith(f"{each}.") for each in allowed):
        permitted = ", ".join(allowed) or "none"
        raise OptionsRefused(
            f"transform {step.name!r} asks for {name}, but this worker allows the modules {permitted}. "
            "Add it to worker.allowed_modules."
        )
    try:
        function: Callable[..., DataFrame] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionsRefused(f"transform {step.name!r}: {name} can't be had: {error}") from error
    if not callable(function):
        raise OptionsRefused(f"transform {step.name!r}: {name} can't be called")
    return function
