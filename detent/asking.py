"""What all commands to a running Detent have in common: their options, the connection, and how an answer is said.

@asks
def pause(ask: Ask, job: JobId, reason: Reason = "") -> None:
    ask.say(ask.client.pause(job, reason, command_id=ask.command_id))
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from detent.client import Client
from detent.options import BootstrapServers, Changes, ConfigFile, StateDir, at_cluster, settings_for
from detent.output import Json, camel, say, say_json
from detent.reaching import reached
from detent.settings_load import Loaded
from events.asking import PATIENCE_S, Answer

P = ParamSpec("P")

CommandId = Annotated[
    str,
    typer.Option(
        "--command-id",
        help="An id of your own for this command. Asking again with it gives the first answer; nothing is done twice.",
    ),
]
By = Annotated[str, typer.Option("--by", help="Who asks, for the audit. Without it: user@host.")]
Patience = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for the answer.")]


class Ask:
    """A command that is being asked. It connects when the client is first needed, not before."""

    def __init__(self, loaded: Loaded, command_id: str, by: str, patience_s: float, *, as_json: bool) -> None:
        self._loaded, self._by, self._patience_s = loaded, by, patience_s
        self.command_id, self.as_json = command_id, as_json
        self._held = ExitStack()

    @functools.cached_property
    def client(self) -> Client:
        return self._held.enter_context(reached(self._loaded, by=self._by, patience_s=self._patience_s))

    def say(self, answer: Answer) -> Answer:
        if self.as_json:
            say_json(camel(answer))
        else:
            say(f"{answer.job}: {answer.action} {answer.state.lower()}, {answer.reason}")
        return answer

    def close(self) -> None:
        self._held.close()


def _common(
    command_id: CommandId = "",
    by: By = "",
    timeout: Patience = PATIENCE_S,
    bootstrap_servers: BootstrapServers = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    changes: Changes = None,
    as_json: Json = False,
) -> Ask:
    """The options that all of them have, and what they come to."""
    return Ask(
        settings_for(config, changes, at_cluster(bootstrap_servers, state_dir)),
        command_id,
        by,
        timeout,
        as_json=as_json,
    )


COMMON_NAMES = tuple(inspect.signature(_common).parameters)


def asks(command: Callable[Concatenate[Ask, P], None]) -> Callable[..., None]:
    """The command with the common options added to its own, as typer wants to see them."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        ask = _common(**{name: given.pop(name) for name in COMMON_NAMES})
        try:
            command(ask, **given)  # type: ignore[call-arg]
        finally:
            ask.close()

    own, common = parameters(command)[1:], parameters(_common)
    run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *common)}
    del run.__wrapped__
    return run


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """With their annotations as objects."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = inspect.signature(function).parameters.values()
    return [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in found]
