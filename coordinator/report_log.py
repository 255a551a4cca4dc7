"""What workers reported of jobs, as far as it is kept on the reports topic: to tell what was late or ignored. Read when
it is asked for, and then only what is new. One thread at a time.
"""

from __future__ import annotations

import time
from collections import deque

from coordinator.ignored import Reported
from events.cluster import Cluster
from events.codec import Codec
from events.errors import Place, UnreadableRecord
from events.reader import PartitionReader, offset_of
from events.records import Report

MOST_REPORTS = 200_000  # so many of the newest are kept
PATIENCE_S = 30.0


class ReportLog:
    """The reports of one shard. What can't be read is in dead letters."""

    def __init__(self, cluster: Cluster, shard: int, codec: Codec) -> None:
        self._cluster, self._shard, self._codec = cluster, shard, codec
        self._reader: PartitionReader | None = None
        self._kept: deque[tuple[int, bytes, bytes]] = deque(maxlen=MOST_REPORTS)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def of(self, job: str) -> list[Reported]:
        """Those of a job, in their order."""
        self._refresh()
        key, found = job.encode(), list[Reported]()
        for offset, name, value in self._kept:
            if name == key:
                try:
                    report = self._codec.decode(value, Report, Place("reports", self._shard, offset))
                except UnreadableRecord:
                    continue
                found.append(Reported(self._shard, offset, report))
        return found

    def _refresh(self) -> None:
        if self._reader is None:
            self._reader = PartitionReader(self._cluster, "reports", self._shard)
            first, end = self._reader.start_and_end()
            self._reader.go_to(max(first, end - MOST_REPORTS))
        reader = self._reader
        end, heard = reader.start_and_end()[1], time.monotonic()
        while reader.position < end:
            messages = reader.poll(0.1)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE_S:
                raise self._cluster.no_answer(f"reading reports/{self._shard}", PATIENCE_S)
            self._kept.extend((offset_of(each), each.key() or b"", each.value() or b"") for each in messages)
