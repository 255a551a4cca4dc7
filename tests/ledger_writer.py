"""A process that does nothing but decide and write its ledger, to be killed: `python -m tests.ledger_writer`.

After each step that is durable it says so with a byte on stdout. The steps depend on nothing but the seed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
from collections.abc import Iterator
from pathlib import Path

from events import records as r
from tests.worker_bench import addressed, order, piece
from workers import happenings as h
from workers import store as stores
from workers.core import decide
from workers.happenings import Settings
from workers.ledger import Identity, Ledger, apply

SETTINGS = Settings(worker="w1", slots=8)
STEP = b"."
DISK_FULL = 3


def steps(seed: int) -> Iterator[h.Input]:
    """Orders and happenings without end, for a few tasks, so that many meet each other."""
    rng = random.Random(seed)
    for number in itertools.count():
        epoch = 1 + number // 100  # as on a log: a reign that is over gives no more orders
        who = Identity(f"job/{rng.randint(0, 3)}", rng.randint(1, 2), 0, rng.randint(0, 2), rng.randint(1, 3))
        checkpoint = rng.randint(1, 6)
        pieces = tuple(piece(f"{checkpoint}-{i}" * 20) for i in range(rng.randint(0, 4)))
        yield rng.choice(
            [
                order(r.Deploy(specification="{}" * 100), who, epoch=epoch),
                h.Started(who),
                h.Progressed(who, 1, 2, 3),
                order(r.TriggerCheckpoint(checkpoint=checkpoint), who, epoch=epoch),
                h.Staged(who, checkpoint, b"position", pieces, 10, 100),
                h.Exhausted(who, b"end"),
                h.Crashed(who, "boom"),
                h.Stopped(who, "told to"),
                h.Withdrawn(who.job, who.pipeline, who.task),
                order(r.CommitCheckpoint(checkpoint=checkpoint, specification="{}", staged=pieces), who, epoch=epoch),
                h.Published(who.job, who.incarnation, who.pipeline, checkpoint, 5),
                order(r.StopTask(reason="cancelled"), who, epoch=epoch),
                order(r.RemoveStaging(specification="{}"), who, epoch=epoch),
                h.StagingGone(who.job, who.incarnation, 1),
            ]
        )


def hard(ledger: Ledger) -> tuple[object, ...]:
    """What must survive. (The highest epoch of a job is that of what is held: of what was dropped, it is forgotten.)"""
    jobs = {job: set(of.keys) for job, of in ledger.jobs.items()}
    return ledger.tasks, ledger.publications, ledger.removals, jobs, ledger.ordered_by, ledger.active


def after(seed: int, count: int) -> Ledger:
    """The ledger that so many steps lead to, without any disk."""
    ledger = Ledger()
    for _, it in zip(range(count), steps(seed), strict=False):
        apply(ledger, decide(ledger, addressed(it, ledger, SETTINGS), 1000, SETTINGS).changes)
    return ledger


def write_on(path: Path, seed: int, limit: int) -> None:
    store, ledger = stores.load(path)
    for number, it in enumerate(steps(seed)):
        if number < store.position:
            continue
        if number == limit:
            break
        changes = decide(ledger, it, 1000, SETTINGS).changes
        store.write(changes, number + 1)
        apply(ledger, changes)
        os.write(1, STEP)
    os._exit(0)  # without closing: the log of writes stays as a crash leaves it


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=-1)
    parser.add_argument("--file-bytes", type=int, default=0, help="no file may become larger: a disk that is full")
    chosen = parser.parse_args()
    if chosen.file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (chosen.file_bytes, resource.RLIM_INFINITY))
    try:
        write_on(chosen.path, chosen.seed, chosen.steps)
    except stores.LedgerFailed as error:
        os.write(2, str(error).encode())
        raise SystemExit(DISK_FULL) from None


if __name__ == "__main__":
    main()
