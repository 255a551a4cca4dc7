"""A story as it stands in its file: title, sentence, script, how it must end, and the golden trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
SCRIPT, ENDS, SEEN = "What happens:", "How it must end:", "In this telling:"
RULE, NEXT = "----", "===="


class StoryError(Exception):
    """A story that can't be told as it is written: says which, what is wrong with it and what to do."""


class NobodyThere(StoryError):
    """A fault that finds nobody to strike. Where leaders are made to die besides, that may be."""


@dataclass(frozen=True)
class Statement:
    """A line of the script. `when` it is: at once, when something is so (looked at after every step), as something
    happens (in the midst of a step), or after a time."""

    text: str
    when: str  # "now", "when", "as" or "after"
    what: str  # the condition; the milliseconds for "after"
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Story:
    id: str
    title: str
    prose: str
    script: tuple[Statement, ...]
    ends: tuple[str, ...]  # holds in every telling, whoever dies in it
    seen: tuple[str, ...]  # holds in the telling without further crashes
    head: str  # the file's text up to the trace
    trace: str

    @property
    def name(self) -> str:
        """As in the name of its test: `D5_the_leader_dies_…`."""
        return f"{self.id}_{'_'.join(re.findall(r'[a-z0-9]+', self.title.lower()))}"


def files() -> list[Path]:
    def order(path: Path) -> tuple[int, int]:
        return "DRTZOB".index(path.stem[0]), int(path.stem[1:])

    return sorted(FOLDER.glob("[A-Z]*.txt"), key=order)


def read(path: Path) -> list[Story]:
    """The stories of a file, which are those of one scenario."""
    return [_story(path, part) for part in path.read_text().split(f"\n{NEXT}\n")]


def write(path: Path, traces: list[str]) -> None:
    """The file with these traces in place of those it has."""
    heads = [story.head for story in read(path)]
    parts = [f"{head}{RULE}\n{trace}" for head, trace in zip(heads, traces, strict=True)]
    path.write_text(f"\n{NEXT}\n".join(parts))


def all_stories() -> list[Story]:
    return [story for path in files() for story in read(path)]


def _story(path: Path, text: str) -> Story:
    head, ruled, trace = text.partition(f"{RULE}\n")
    if not ruled:
        raise StoryError(f"{path.name} has no line {RULE} between a story and its trace; add it, then run --write")
    first, _, rest = head.strip().partition("\n")
    scenario, _, title = first.partition(" ")
    if scenario != path.stem or not title.strip():
        raise StoryError(f"{path.name} begins with {first!r}; it should be `{path.stem}  what the story is`")
    prose, *sections = re.split(rf"^({SCRIPT}|{ENDS}|{SEEN})\n", rest, flags=re.MULTILINE)
    found = {name: _lines(body) for name, body in zip(sections[::2], sections[1::2], strict=True)}
    if SCRIPT not in found or ENDS not in found or not prose.strip():
        raise StoryError(f"{path.name}: a story has a sentence, `{SCRIPT}` and `{ENDS}`")
    return Story(
        scenario,
        title.strip(),
        prose.strip(),
        tuple(_statement(line) for line in found[SCRIPT]),
        tuple(found[ENDS]),
        tuple(found.get(SEEN, ())),
        head,
        trace,
    )


def _lines(section: str) -> list[str]:
    """One entry a line; a line that is indented further goes on with the one before."""
    found: list[str] = []
    for line in section.splitlines():
        if line.startswith("    ") and found:
            found[-1] += " " + line.strip()
        elif line.strip():
            found.append(line.strip())
    return found


def _statement(text: str) -> Statement:
    conditional = re.fullmatch(r"(when|as|after) (.+?): (.+)", text)
    if conditional is None:
        return Statement(text, "now", "", tuple(text.split("; ")))
    when, what, actions = conditional.groups()
    return Statement(text, when, what, tuple(actions.split("; ")))
