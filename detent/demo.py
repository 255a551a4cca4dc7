"""`detent demo`: a whole Detent at work, a coordinator and a worker killed with -9 in the middle, and every row there
exactly once. It stands on the machinery of `detent up`, in a state directory of its own."""

from __future__ import annotations

import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from coordinator.explaining import explain_job
from coordinator.past import Past
from coordinator.read_model import ReadModel
from coordinator.views import JobDetail, JobView, TakeoverView
from detent.client import Client
from detent.demo_play import JOB, Play, RowsDiffer, TrialPlay
from detent.exits import Exit
from detent.explain_text import explanation_lines
from detent.options import Changes, ConfigFile, StateDir, settings_for
from detent.output import console
from detent.settings_sources import flag
from detent.stopping import Stopping
from detent.supervisor import Change, Supervisor
from detent.times import clock
from detent.up import common_options, port_for_page, programs, running
from detent.watching import StoppedWatching, watch_job
from events import embedded
from events.cluster import Cluster
from events.codec import Codec
from events.errors import DetentError

COORDINATORS = WORKERS = 2
ROWS = 2_000_000
LIMIT_S = 900.0  # for a machine that is much too busy; it is not how long it should take
# For a machine that runs all of it at once: a busy one must not lose a worker that is only slow.
SETTINGS = {
    "kafka.shards": "2",
    "worker.slots": "4",
    "worker.heartbeat_ms": "250",
    "coordinator.detection_ms": "1000",
    "coordinator.sweep_ms": "250",
}
FIRST_KILL, SECOND_KILL = 0.2, 0.5  # how much of the input is read by then


class Demo:
    """The story, told as it happens."""

    def __init__(self, screen: Console, play: Play) -> None:
        self.screen, self._play = screen, play
        self._began = time.monotonic()
        self._killed_leader = self._killed_worker = ""
        self._killed_at = 0.0
        self._epoch = 0
        self.takeover: TakeoverView | None = None
        self.supervisor: Supervisor | None = None

    def say(self, text: str, style: str = "") -> None:
        self.screen.print(f"{datetime.now():%H:%M:%S}  {text}", style=style or None, markup=False)

    def tell(self, change: Change) -> None:
        if change.what == "ready":
            self.say(f"{change.name} is ready ({change.detail})")
        elif change.what == "ended":
            self.say(f"{change.name} has ended {change.detail}")

    def meanwhile(self, model: ReadModel, detail: JobDetail) -> None:
        """Kill somebody when it is time, and tell what comes of it."""
        assert self.supervisor is not None
        self.supervisor.tend()
        if time.monotonic() - self._began > LIMIT_S:
            raise DetentError(f"the job is still {detail.job.state} after {LIMIT_S:g} s; see `detent explain {JOB}`")
        shard = model.shards()[detail.job.shard]
        read = detail.job.rows / self._play.rows
        if not self._killed_leader:
            is_time = read >= FIRST_KILL and detail.job.last_checkpoint_id and shard.standing_by
            if is_time and detail.job.state == "RUNNING":
                self._kill_leader(shard.leader, shard.epoch, read)
        elif self.takeover is None:
            self._look_for_takeover(model, detail.job.shard)
        elif not self._killed_worker and read >= SECOND_KILL and detail.job.state == "RUNNING":
            busy = [task.worker for task in detail.tasks if task.state == "RUNNING" and task.worker]
            if busy:
                self._kill_worker(max(set(busy), key=busy.count), read)

    def _kill_leader(self, leader: str, epoch: int, read: float) -> None:
        assert self.supervisor is not None
        self._killed_leader, self._epoch = leader, epoch
        pid = self.supervisor.kill(f"coordinator-{leader.removeprefix('c')}")
        self._killed_at = time.monotonic()
        self.say(f"kill -9 of coordinator {leader} (pid {pid}), which leads this job; {read:.0%} is read", "bold red")

    def _look_for_takeover(self, model: ReadModel, shard: int) -> None:
        newer = [takeover for takeover in model.takeovers(shard) if takeover.epoch > self._epoch]
        if newer and (newer[0].total_ms is not None or time.monotonic() - self._killed_at > 5):
            self.takeover = newer[0]
            parts = {"noticed": newer[0].detect_ms, "fenced": newer[0].fence_ms, "replayed": newer[0].replay_ms,
                     "first commit": newer[0].first_commit_ms}  # fmt: skip
            told = ", ".join(f"{name} {ms:.0f} ms" for name, ms in parts.items() if ms is not None)
            total = f" in {newer[0].total_ms:.0f} ms" if newer[0].total_ms is not None else ""
            self.say(f"coordinator {newer[0].leader} has taken over{total} ({told}); no task was touched", "bold green")

    def _kill_worker(self, worker: str, read: float) -> None:
        assert self.supervisor is not None
        self._killed_worker = worker
        pid = self.supervisor.kill(f"worker-{worker.removeprefix('w')}")
        self.say(f"kill -9 of worker {worker} (pid {pid}), which runs tasks; {read:.0%} is read", "bold red")

    def check(self, ended: JobView) -> None:
        """Raises RowsDiffer, or DetentError where the story was not the one to be told."""
        if ended.state != "FINISHED":
            raise DetentError(f"the job has ended as {ended.state}: {ended.reason}")
        if not self._killed_worker or self.takeover is None:
            raise DetentError("the job was over before both could be killed; try with more --rows")
        self.say("now another reader compares what arrived with the source")
        self.say(self._play.check(), "bold green")


def run_demo(
    keep: Annotated[
        bool, typer.Option("--keep", envvar="KEEP", help="Leave everything running afterwards, until Ctrl-C.")
    ] = False,
    rows: Annotated[int, typer.Option("--rows", min=1000, help="How many rows, on Spark.")] = ROWS,
    engine: Annotated[Literal["spark", "trial"], typer.Option("--engine", help="What runs the tasks.")] = "spark",
    state_dir: StateDir = None,
    config: ConfigFile = None,
    changes: Changes = None,
) -> None:
    """See it work: a job that loses its coordinator and a worker, and not one row.

    A broker, two coordinators and two workers run it; one of each is killed with -9 in the middle; every row arrives
    exactly once, which another reader checks against the source.

    It always uses an embedded broker, with its data in `demo` of the state directory.
    """
    base = Path(settings_for(config, changes, flag("--state-dir", "state_dir", state_dir)).settings.state_dir)
    directory = (base / "demo").absolute()
    if embedded.status(directory) is not None:
        raise DetentError(f"a demo runs already in {directory}: stop it with Ctrl-C where it was started")
    shutil.rmtree(directory, ignore_errors=True)
    play = _play(engine, directory, rows)
    ours = [*(changes or ()), *(f"{name}={value}" for name, value in {**SETTINGS, **play.settings}.items())]
    ours += ["kafka.bootstrap_servers=", f"state_dir={directory}"]
    loaded = settings_for(config, ours)
    screen = console()
    demo = Demo(screen, play)
    wanted = programs(COORDINATORS, WORKERS, common_options(config, ours, ()), web_port=port_for_page(loaded))
    try:
        with running(loaded, wanted, demo.tell) as (supervisor, cluster):
            demo.supervisor = supervisor
            demo.say(f"a real Kafka broker is at {cluster.bootstrap_servers}")
            play.prepare(cluster)  # while the processes start
            demo.say("the input is written")
            supervisor.until_ready()
            with Client.on(cluster, by="the demo") as client:
                answer = client.submit(play.job())
                demo.say(f"job {JOB} is submitted: {play.says}", "bold")
                ended = watch_job(cluster, client.codec, JOB, answer.incarnation, meanwhile=demo.meanwhile, on=screen)
                demo.check(ended)
                _explain(demo, client.cluster, client.codec)
            _tell_the_end(demo, supervisor, directory)
            if keep:
                _keep(demo, supervisor)
    except StoppedWatching:
        raise typer.Exit(Exit.INTERRUPTED) from None
    except RowsDiffer as error:
        screen.print(str(error), style="bold red", markup=False)
        raise typer.Exit(Exit.UNSOUND) from error


def _play(engine: str, directory: Path, rows: int) -> Play:
    if engine == "trial":
        return TrialPlay(directory)
    from detent.demo_spark import SparkPlay  # pyarrow takes a while to import: no other command should wait for it

    return SparkPlay(directory, rows)


def _explain(demo: Demo, cluster: Cluster, codec: Codec) -> None:
    """As `detent explain` tells it."""
    with ReadModel(cluster, codec) as model, Past(cluster, codec) as past:
        model.catch_up()
        with model.now() as now:
            said = explain_job(past, now, JOB, clock)
    demo.say(f"detent explain {JOB}:", "bold")
    for line in explanation_lines(said, clock) if said is not None else ():
        demo.screen.print(f"  {line}", markup=False)


def _tell_the_end(demo: Demo, supervisor: Supervisor, directory: Path) -> None:
    demo.say(f"the page is at {supervisor.running['web'].page}; what the processes said is in {directory}/logs")


def _keep(demo: Demo, supervisor: Supervisor) -> None:
    demo.say("everything goes on running; Ctrl-C stops it")
    with Stopping() as stopping:
        while not stopping.wait(0.2):
            supervisor.tend()
