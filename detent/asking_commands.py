"""`detent submit`, `watch`, `cancel`, `savepoint`, `restore`, `stop`, `pause`, `resume`, `repair`: for a running one.

Each command waits for the coordinator's answer, which is on the log, and says it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detent.asking import Ask, asks
from detent.client import Client
from detent.exits import Exit
from detent.jobs import Job
from detent.options import BootstrapServers, Changes, ConfigFile, StateDir, at_cluster, settings_for
from detent.output import Json, camel, say, say_json
from detent.reaching import reached
from detent.watching import StoppedWatching, watch_job

GOOD_ENDS = ("FINISHED", "SAVEPOINTED")

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the record.")]


@asks
def submit(
    ask: Ask,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job file, YAML or JSON.")],
    name: Annotated[str, typer.Option("--name", help="The job's id, in place of what the file says.")] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Show how it gets on until it ends.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it ends; the exit code says how.")] = False,
) -> None:
    """Run a job. The file is checked before anything is sent.

    Example: detent submit examples/hello.yaml --watch
    """
    job = Job.from_file(file)
    answer = ask.say(ask.client.submit(job, name=name, command_id=ask.command_id))
    if watch:
        watch_to_end(ask.client, answer.job, answer.incarnation, as_json=ask.as_json)
    elif wait:
        await_end(ask, answer.job, answer.incarnation)


def await_end(ask: Ask, job: str, incarnation: int) -> None:
    """Say how it ended; the exit code says it, too."""
    ended = ask.client.wait(job, incarnation=incarnation)
    if ask.as_json:
        say_json(camel(ended))
    else:
        say(f"{job}: {ended.state}{f', {ended.reason}' if ended.reason else ''}")
    if ended.state not in GOOD_ENDS:
        raise typer.Exit(Exit.ENDED_BADLY)


def watch_to_end(client: Client, job: str, incarnation: int, *, as_json: bool) -> None:
    try:
        ended = watch_job(client.cluster, client.codec, job, incarnation, as_json=as_json)
    except StoppedWatching:
        if not as_json:
            say(f"stopped watching; {job} goes on")
        raise typer.Exit(Exit.INTERRUPTED) from None
    if ended.state not in GOOD_ENDS:
        raise typer.Exit(Exit.ENDED_BADLY)


def watch(
    job: JobId,
    bootstrap_servers: BootstrapServers = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:
    """Show how a job gets on until it ends: rows, rows a second, bytes and the age of its last checkpoint.

    Ctrl-C ends the watching, not the job. Example: detent watch hello
    """
    with reached(settings_for(config, changes, at_cluster(bootstrap_servers, state_dir))) as client:
        watch_to_end(client, job, 0, as_json=as_json)


@asks
def cancel(ask: Ask, job: JobId, reason: Reason = "") -> None:
    """End a job now. Output that no completed checkpoint names is discarded.

    Example: detent cancel hello --reason "not needed"
    """
    ask.say(ask.client.cancel(job, reason, command_id=ask.command_id))


@asks
def savepoint(
    ask: Ask,
    job: JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called, to restore from it.")],
    stop: Annotated[bool, typer.Option("--stop", help="End the job with it.")] = False,
) -> None:
    """Keep the job's next checkpoint under a name.

    Example: detent savepoint hello before-upgrade --stop
    """
    ask.say(ask.client.savepoint(job, name, stop=stop, command_id=ask.command_id))


@asks
def restore(
    ask: Ask,
    job: JobId,
    savepoint: Annotated[
        str, typer.Option("--savepoint", help="The savepoint. Without it: the newest committed checkpoint.")
    ] = "",
    file: Annotated[Path | None, typer.Option("--file", help="A changed job file, in place of the old one.")] = None,
    elsewhere: Annotated[
        list[str] | None,
        typer.Option(
            "--elsewhere",
            metavar="PIPELINE/TASK=POSITION",
            help="A position to start a task from instead, past one that its source no longer has. May be repeated.",
        ),
    ] = None,
) -> None:
    """Run an ended job again from where it was.

    Example: detent restore hello --savepoint before-upgrade
    """
    positions = dict(map(_position, elsewhere or ()))
    changed = None if file is None else Job.from_file(file)
    answer = ask.client.restore(job, savepoint, specification=changed, elsewhere=positions, command_id=ask.command_id)
    ask.say(answer)


def _position(text: str) -> tuple[tuple[int, int], bytes]:
    place, equals, position = text.partition("=")
    pipeline, slash, task = place.partition("/")
    if not (equals and slash and pipeline.isdigit() and task.isdigit()):
        raise typer.BadParameter(f"{text!r} is not PIPELINE/TASK=POSITION, such as 0/1=4711", param_hint="--elsewhere")
    return (int(pipeline), int(task)), position.encode()


@asks
def stop(
    ask: Ask,
    job: JobId,
    drain: Annotated[bool, typer.Option("--drain", help="Publish what it has read, then end it.")] = False,
    savepoint: Annotated[str, typer.Option("--savepoint", help="End it with a savepoint of this name.")] = "",
    reason: Reason = "",
) -> None:
    """End a job in good order: all that it has read is published, and nothing more is read.

    Example: detent stop hello --drain
    """
    if drain == bool(savepoint):
        raise typer.BadParameter("say how it is to end: --drain, or --savepoint NAME")
    if savepoint:
        ask.say(ask.client.savepoint(job, savepoint, stop=True, command_id=ask.command_id))
    else:
        ask.say(ask.client.stop(job, reason, command_id=ask.command_id))


@asks
def pause(ask: Ask, job: JobId, reason: Reason = "") -> None:
    """Stop a job's tasks after a checkpoint and keep their place.

    Example: detent pause hello
    """
    ask.say(ask.client.pause(job, reason, command_id=ask.command_id))


@asks
def resume(ask: Ask, job: JobId, reason: Reason = "") -> None:
    """Let a paused job go on.

    Example: detent resume hello
    """
    ask.say(ask.client.resume(job, reason, command_id=ask.command_id))


@asks
def repair(
    ask: Ask,
    job: JobId,
    entity: Annotated[str, typer.Argument(metavar="ENTITY", help="What is stuck, such as task/hello/0/1.")],
    to: Annotated[str, typer.Argument(metavar="STATE", help="The state to move it to; docs/failures.md lists them.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record. It is required.")],
) -> None:
    """Correct something stuck, by an event that says who and why.

    Example: detent repair hello task/hello/0/1 FAILED --reason "its machine is gone"
    """
    ask.say(ask.client.repair(job, entity, to, reason, command_id=ask.command_id))
