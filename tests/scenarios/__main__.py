"""python -m tests.scenarios [--story NAME] [--list | --write | --sweep | --trace [--crash 17,42]]

Without options every story is told once and compared with its golden trace. --write puts the traces of now into the
files: read the diff. --sweep lets the leader die at every boundary besides.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time

from tests.scenarios.runner import SEED, find, perform, stage_for, sweep, tell, trace_of
from tests.scenarios.story import Story, all_stories, files, read, write


def rewrite(scenarios: set[str]) -> int:
    for path in files():
        if path.stem in scenarios:
            write(path, [trace_of(tell(story)) for story in read(path)])
    return 0


def compare(stories: list[Story]) -> int:
    wrong = 0
    for story in stories:
        now = trace_of(tell(story))
        if now != story.trace:
            wrong += 1
            lines = difflib.unified_diff(story.trace.splitlines(), now.splitlines(), "golden", story.name, lineterm="")
            sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.write(f"{len(stories)} stories, {wrong} of them told otherwise than in their golden traces\n")
    return 1 if wrong else 0


def sweep_all(stories: list[Story], seed: int) -> int:
    for story in stories:
        began = time.process_time()
        tellings = sum(1 for _ in sweep(story, seed))
        sys.stdout.write(f"{time.process_time() - began:6.1f} s  {tellings:>5} tellings  {story.name}\n")
        sys.stdout.flush()
    return 0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="write the golden traces anew")
    options.add_argument("--list", action="store_true", help="name the stories")
    options.add_argument("--story", default="", help="only this scenario, or the story whose name begins so")
    options.add_argument("--trace", action="store_true", help="print what happens")
    options.add_argument("--crash", default="", help="boundaries of the leader at which it dies besides: 17 or 17,42")
    options.add_argument("--sweep", action="store_true", help="let the leader die at every boundary, and at two")
    options.add_argument("--seed", type=int, default=SEED, help="of the second deaths of a sweep")
    asked = options.parse_args()
    stories = find(asked.story) if asked.story else all_stories()
    if asked.write:
        return rewrite({story.id for story in stories})
    if asked.list:
        sys.stdout.write("".join(f"{story.name}\n" for story in stories))
        return 0
    if asked.sweep:
        return sweep_all(stories, asked.seed)
    if asked.story and (asked.trace or asked.crash):
        crashes = tuple(int(number) for number in asked.crash.split(",") if number)
        for story in stories:
            show(story, crashes, trace=asked.trace)
        return 0
    return compare(stories)


def show(story: Story, crashes: tuple[int, ...], *, trace: bool) -> None:
    stage = stage_for(story, crashes)
    try:
        perform(stage, story)
    finally:
        sys.stdout.write(trace_of(stage) if trace else "")
    sys.stdout.write(f"{story.name} ends as it must\n")


if __name__ == "__main__":
    sys.exit(main())
