"""Files that outlive a crash: names that any file system takes, and writes that are whole and durable or not there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

LONGEST = 120  # well below what file systems take, so that more can be put behind it


def file_name(name: str) -> str:
    """A name that somebody chose, as a part of a file's name: the same for the same, different for different ones."""
    quoted = quote(name, safe="")
    if len(quoted) <= LONGEST:
        return quoted
    return f"{quoted[:60]}={hashlib.sha256(name.encode()).hexdigest()[:32]}"  # quoting leaves no other "="


def sync_directory(path: Path) -> None:
    """Make what was created, renamed or removed in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: Path) -> None:
    """With its parents, durably: a file synced in a directory that a crash takes away is gone as well."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def write_durably(path: Path, content: bytes, unique: str) -> None:
    """Whole or not at all, and there to stay when this returns. `unique` keeps writers of the same file apart."""
    part = path.with_name(f"{path.name}.{unique}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:  # as when the disk is full: what is tried again and again must not pile up
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
