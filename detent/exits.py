"""The exit codes of `detent`, said once: the help of commands and docs/operations.md name them from here."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a command's exit code says."""

    OK = 0
    ERROR = 1
    USAGE = 2
    INVALID = 3
    REFUSED = 4
    NO_ANSWER = 5
    ENDED_BADLY = 6
    UNSOUND = 7
    INTERRUPTED = 130


MEANING = {
    Exit.OK: "It is done.",
    Exit.ERROR: "It could not be done; the paragraph on stderr says why and what to do next.",
    Exit.USAGE: "The command was not called as it should be.",
    Exit.INVALID: "A job file or a setting can't be used.",
    Exit.REFUSED: "The coordinator refused the command; its reason is on the log.",
    Exit.NO_ANSWER: "No coordinator has answered yet. Ask again with the same --command-id: it is never done twice.",
    Exit.ENDED_BADLY: "The job that was waited for ended, but not as FINISHED (nor, where asked for, SAVEPOINTED).",
    Exit.UNSOUND: "A check found something wrong: `doctor`, `verify`, `demo`.",
    Exit.INTERRUPTED: "Ctrl-C.",
}


def page() -> str:
    """As a table, for the documents."""
    rows = [f"| {code.value} | {meaning} |" for code, meaning in MEANING.items()]
    return "\n".join(["| code | what it says |", "|---|---|", *rows])
