"""What a published checkpoint is known by in a sink that others use as well. Pure.

Job, incarnation, pipeline, checkpoint and sink would do within one log. Another Detent on the same database, or one
whose log was thrown away, counts from one again: so the names of the pieces, which nobody else has, are part of it.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from workers.spark.api import Commit


def owner_of(job: str, incarnation: int, sink: str) -> str:
    """Whose output it is; every identity of it begins with this."""
    return f"{quote(job, safe='')}/{incarnation}/{quote(sink, safe='')}/"


def identity_of(commit: Commit, sink: str) -> str:
    """Of a checkpoint's output in one sink: the same for every try, different for everything else."""
    return f"{owner_of(commit.job, commit.incarnation, sink)}{commit.pipeline}/{commit.checkpoint}/{digest_of(commit)}"


def digest_of(commit: Commit) -> str:
    names = "\n".join(sorted(piece.name for piece in commit.pieces))
    return hashlib.sha256(names.encode()).hexdigest()[:16]
