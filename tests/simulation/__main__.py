"""python -m tests.simulation --seeds 1000 [--from N] [--jobs 2] [--json] | --seed N [--trace] | --mutants

Runs seeds; the exit code is not 0 when one is violated, or when a planted fault is not seen.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from events.collector import paused_collector
from tests.simulation.mutants import MUTANTS, Plant
from tests.simulation.world import World, all_of_them

SEEDS_PER_MUTANT = 300
SHRINK_TRIES = 300
BAR = 30  # characters


class Told(NamedTuple):
    """What came of a seed. `violation` is empty when nothing went wrong."""

    seed: int
    violation: str
    steps: int
    transitions: int
    counts: Counter[str]
    struck: list[tuple[int, int, str]]


def tell(seed: int, *, trace: bool = False, lets: Callable[[int], bool] = all_of_them) -> Told:
    with paused_collector():
        return _told(seed, trace, lets)  # and nothing is left of the world when the collector looks again


def _told(seed: int, trace: bool, lets: Callable[[int], bool]) -> Told:
    world, violation = World(seed, lets=lets), ""
    world.checker.tracing = trace
    try:
        world.run()
    except Exception as error:  # noqa: BLE001  whatever goes wrong under a seed is a finding
        violation = f"{type(error).__name__}: {error}"
    return Told(seed, violation, world.steps, world.checker.transitions, world.counts, world.struck)


def shrink(seed: int, tries: int = SHRINK_TRIES) -> tuple[Told, frozenset[int], int]:
    """The shortest story found that still ends badly: first the fewest faults from the beginning, then each of those
    left out in turn. Returns it, with the faults that are left out and the number of the last one let in."""
    whole = tell(seed)
    low, high = 0, max((number for number, _, _ in whole.struck), default=0)
    best = whole
    while low < high:
        middle = (low + high) // 2
        told = tell(seed, lets=lambda number, most=middle: number <= most)  # type: ignore[misc]
        tries -= 1
        if told.violation:
            high, best = middle, told
        else:
            low = middle + 1
    out: frozenset[int] = frozenset()
    for number in [number for number, _, _ in reversed(best.struck)]:
        if tries <= 0:
            break
        tries -= 1
        without = out | {number}
        told = tell(seed, lets=lambda n, most=high, gone=without: n <= most and n not in gone)  # type: ignore[misc]
        if told.violation:
            best, out = told, without
    return best, out, high


def print_shortest(seed: int, *, trace: bool = False) -> None:
    best, out, high = shrink(seed)
    sys.stdout.write(f"seed {seed}, the shortest story found: {len(best.struck)} faults\n")
    for _, at, what in best.struck:
        sys.stdout.write(f"  {at:>7} ms  {what}\n")
    sys.stdout.write(f"  then: {best.violation[:600]}\n")
    if trace:
        tell(seed, trace=True, lets=lambda number: number <= high and number not in out)


def tell_all(seeds: list[int], jobs: int) -> Iterator[Told]:
    if jobs <= 1:
        yield from map(tell, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(tell, seeds, chunksize=10)


class Progress:
    """How far the seeds are, on stderr: a bar that is rewritten on a terminal, a line a minute anywhere else."""

    def __init__(self, total: int) -> None:
        self._total, self._began = total, time.perf_counter()
        self._live = sys.stderr.isatty()
        self._every_s = 0.2 if self._live else 60.0
        self._shown = self._began

    def came(self, done: int, violations: int) -> None:
        now = time.perf_counter()
        if now - self._shown < self._every_s and done < self._total:
            return
        self._shown = now
        rate = done / (now - self._began)
        filled = BAR * done // self._total
        text = f"{done:,} of {self._total:,} seeds, {violations} violations, {rate:.1f}/s, "
        text += f"{(self._total - done) / rate / 60:.1f} min to go"
        sys.stderr.write(f"\r\x1b[K[{'#' * filled}{'.' * (BAR - filled)}] {text}" if self._live else f"{text}\n")
        sys.stderr.write("\n" if self._live and done == self._total else "")
        sys.stderr.flush()

    def say(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")
        sys.stderr.flush()


def run(seeds: list[int], jobs: int, as_json: bool) -> int:
    counts: Counter[str] = Counter()
    steps = transitions = 0
    violations: list[Told] = []
    started, progress = time.perf_counter(), Progress(len(seeds))
    for done, told in enumerate(tell_all(seeds, jobs), 1):
        counts.update(told.counts)
        steps, transitions = steps + told.steps, transitions + told.transitions
        if told.violation:
            violations.append(told)
            progress.say(f"seed {told.seed}: {told.violation[:200]}")
        progress.came(done, len(violations))
    took = time.perf_counter() - started
    for told in violations[:10]:
        sys.stdout.write(f"seed {told.seed}: {told.violation[:600]}\n")
    if violations:
        print_shortest(min(violations, key=lambda told: len(told.struck)).seed)
    result = {
        "seeds": len(seeds),
        "seeds_per_s": round(len(seeds) / took, 1),
        "steps": steps,
        "transitions_per_seed": round(transitions / len(seeds)),
        "violations": len(violations),
        "counts": dict(counts.most_common()),
    }
    sys.stdout.write(json.dumps(result, indent=None if as_json else 1) + "\n")
    return 1 if violations else 0


def seen_at(plant: Plant, first: int = 1) -> tuple[int, str] | None:
    """The first seed under which a planted fault shows, and how."""
    for seed in range(first, first + SEEDS_PER_MUTANT):
        with ExitStack() as stack:
            plant(stack)
            if violation := tell(seed).violation:
                return seed, violation
    return None


def hunt(first: int, as_json: bool, only: str) -> int:
    survived = []
    for what, plant in MUTANTS.items():
        if only not in what:
            continue
        seen = seen_at(plant, first)
        if seen is None:
            survived.append(what)
        where, how = (f"seed {seen[0]:>3}", seen[1][:90]) if seen else ("SURVIVED", "")
        sys.stdout.write(f"{where}  {what}  {how}\n")
        sys.stdout.flush()
    if as_json:
        sys.stdout.write(json.dumps({"mutants": len(MUTANTS), "survived": survived}) + "\n")
    return 1 if survived else 0


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=at_least_one, default=100, help="how many seeds to run")
    options.add_argument("--from", type=int, default=1, dest="first", help="the first of them")
    options.add_argument("--jobs", type=at_least_one, default=1, help="processes to run them in")
    options.add_argument("--seed", type=int, help="run this one alone")
    options.add_argument("--shrink", action="store_true", help="with --seed: the shortest story that still ends badly")
    options.add_argument("--trace", action="store_true", help="with --seed: every transition, as the log has it")
    options.add_argument("--mutants", action="store_true", help="plant every known fault; each must be seen")
    options.add_argument("--only", default="", help="with --mutants: those whose name contains this")
    options.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = options.parse_args()
    if arguments.mutants:
        return hunt(arguments.first, arguments.json, arguments.only)
    if arguments.seed is not None and arguments.shrink:
        print_shortest(arguments.seed, trace=arguments.trace)
        return 1
    if arguments.seed is not None:
        told = tell(arguments.seed, trace=arguments.trace)
        sys.stdout.write(f"seed {told.seed}: {told.violation or 'nothing went wrong'}\n")
        return 1 if told.violation else 0
    return run(list(range(arguments.first, arguments.first + arguments.seeds)), arguments.jobs, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
