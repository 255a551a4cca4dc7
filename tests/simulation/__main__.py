"""python -m tests.simulation --seeds 1000 [--from N] [--json] | --seed N: run seeds; non-zero when one is violated."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from contextlib import ExitStack

from tests.simulation.mutants import MUTANTS, Plant
from tests.simulation.world import World

SEEDS_PER_MUTANT = 300


def seen_at(plant: Plant, seeds: int = SEEDS_PER_MUTANT) -> tuple[int, str] | None:
    """The first seed under which a planted fault shows, and how."""
    for seed in range(1, seeds + 1):
        with ExitStack() as stack:
            plant(stack)
            try:
                World(seed).run()
            except Exception as error:  # noqa: BLE001  however it shows, it is seen
                return seed, f"{type(error).__name__}: {error}"
    return None


def hunt(as_json: bool) -> int:
    survived = []
    for what, plant in MUTANTS.items():
        seen = seen_at(plant)
        if seen is None:
            survived.append(what)
        sys.stdout.write(
            f"{'SURVIVED' if seen is None else f'seed {seen[0]:>3}'}  {what}  {seen[1][:90] if seen else ''}\n"
        )
        sys.stdout.flush()
    if as_json:
        sys.stdout.write(json.dumps({"mutants": len(MUTANTS), "survived": survived}) + "\n")
    return 1 if survived else 0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    options.add_argument("--from", type=int, default=1, dest="first", help="the first of them")
    options.add_argument("--seed", type=int, help="run this one alone and show what goes wrong")
    options.add_argument("--mutants", action="store_true", help="plant every known fault; each must be seen")
    options.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = options.parse_args()
    if arguments.mutants:
        return hunt(arguments.json)
    seeds = (
        [arguments.seed] if arguments.seed is not None else range(arguments.first, arguments.first + arguments.seeds)
    )
    counts: Counter[str] = Counter()
    transitions = steps = 0
    violations: list[tuple[int, str]] = []
    started = time.perf_counter()
    for done, seed in enumerate(seeds, 1):
        world = World(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001  whatever goes wrong under a seed is a finding
            violations.append((seed, f"{type(error).__name__}: {error}"))
            if arguments.seed is not None:
                traceback.print_exc()
        counts.update(world.counts)
        transitions += world.checker.transitions
        steps += world.steps
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {len(seeds)} seeds, {len(violations)} violations ")
    took = time.perf_counter() - started
    result = {"seeds": len(seeds), "seeds_per_s": round(len(seeds) / took, 1), "steps": steps,
              "transitions_per_seed": round(transitions / len(seeds)), "violations": len(violations),
              "counts": dict(counts.most_common())}  # fmt: skip
    for seed, what in violations[:10]:
        sys.stdout.write(f"seed {seed}: {what[:600]}\n")
    sys.stdout.write(json.dumps(result, indent=None if arguments.json else 1) + "\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
