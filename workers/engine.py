"""What runs a worker's tasks: the seam between the worker's decisions and whatever moves the rows.

The worker's main thread calls an engine and must never wait for it: every call returns at once, the work is done on
threads of the engine's own, and what came of it is said through `say`, from any thread, whenever it is known.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from events import records
from events.errors import DetentError
from workers import happenings as h
from workers.ledger import Identity

Answer = h.TaskHappening | h.Published | h.PublishFailed | h.StagingGone | h.StagingStuck
Say = Callable[[Answer], None]
MayPublish = Callable[[], bool]

# Detent's own engines need nobody's leave.
ALWAYS_ALLOWED = ("workers",)


class Engine(Protocol):
    """Each method is called by one thread, the worker's main thread, in the order of its decisions. An error that a
    call raises is taken as its answer: the attempt crashed, the checkpoint or publication failed, staging is stuck."""

    def start(self, who: Identity, deploy: records.Deploy, say: Say) -> None:
        """Run the attempt's loop, with staging of its own. It says Started first, Progressed as it goes, Exhausted at
        its source's end, and Crashed or Stopped last. It is never told to start the same attempt twice."""
        ...

    def stop(self, who: Identity, reason: str) -> None:
        """End the loop, wherever it is. An attempt that is gone needs no answer."""
        ...

    def stage(self, who: Identity, checkpoint: int) -> None:
        """Let the loop finish its slice and stage its output, durably, before it says Staged; or StageFailed."""
        ...

    def publish(self, effect: h.Publish, may_publish: MayPublish, say: Say) -> None:
        """Make staged output visible, idempotently by job, incarnation, pipeline and checkpoint. `may_publish` is asked
        right before each step by which something becomes visible, on whichever thread does it."""
        ...

    def remove(self, effect: h.RemoveStaging, say: Say) -> None:
        """Remove what this incarnation of the job has in staging."""
        ...

    def close(self, patience_s: float) -> None:
        """The process ends: stop whatever still runs and let go of what is held, within this time."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """What an engine is told of the worker that it works for."""

    worker: str
    instance: str  # this process of it, and no other
    directory: Path  # the worker's own, the same after a restart
    now_ms: Callable[[], int]
    slots: int = 1
    options: Mapping[str, object] = field(default_factory=dict)


EngineMaker = Callable[[Surroundings], Engine]


@dataclass(eq=False)
class EngineRefused(DetentError):
    """An engine that can't be had."""

    name: str
    reason: str

    def message(self) -> str:
        return (
            f"the engine {self.name!r} can't be used: {self.reason}. Set worker.engine to module:name, such as "
            "workers.trial:TrialEngine; a module that is not Detent's own must be in worker.allowed_modules."
        )


def find_engine(name: str, allowed: Sequence[str]) -> EngineMaker:
    """The engine that `module:name` stands for, if its module is among the allowed ones or below them."""
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute.isidentifier()):
        raise EngineRefused(name, "it is not module:name")
    permitted = (*ALWAYS_ALLOWED, *allowed)
    if not any(module == each or module.startswith(f"{each}.") for each in permitted):
        raise EngineRefused(name, f"{module} is in none of the allowed modules ({', '.join(permitted)})")
    try:
        maker: EngineMaker = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise EngineRefused(name, f"{module} can't be imported: {error}") from error
    except AttributeError as error:
        raise EngineRefused(name, f"{module} has no {attribute}") from error
    if not callable(maker):
        raise EngineRefused(name, f"{attribute} is no engine")
    return maker
