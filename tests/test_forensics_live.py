"""Forensics of a real run: coordinators and workers are killed with -9. Afterwards the log alone tells what happened,
is sound, and comes out the same when every decision is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.explaining import clock, explain_job
from coordinator.past import Past
from coordinator.read_model import ReadModel
from coordinator.verifying import verify_cluster
from detent.explain_text import explanation_lines
from events.embedded import EmbeddedBroker
from events.recovery import now_ms
from events.schema_topic import reading_codec
from tests.scenes import Scene, a_scene, numbers

pytestmark = pytest.mark.broker


def explained(scene: Scene, job: str) -> str:
    with ReadModel(scene.cluster) as model, Past(scene.cluster) as past:
        model.catch_up()
        with model.now() as now:
            said = explain_job(past, now, job, clock)
    assert said is not None
    return "\n".join(explanation_lines(said, clock))


def test_after_a_leader_and_a_worker_were_killed_the_log_tells_it_and_is_sound(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with a_scene(broker.bootstrap_servers, tmp_path, coordinators=2, workers=2) as scene:
        scene.submit("orders", numbers("in", 4000, parallelism=2, rate=400))
        scene.until_committed("orders")
        before = scene.led().name
        taken = scene.kill_leader()
        scene.until_committed("orders", 2)
        scene.workers["w1"].kill()
        scene.worker("w1")
        scene.until_job("orders", "FINISHED")
        text = explained(scene, "orders")
        assert text.startswith("Job orders (incarnation 1) FINISHED at ")
        assert "with 4,000 rows published" in text
        assert f"Coordinator {taken.by} took over from {before} (epoch {taken.epoch})" in text
        assert "noticed after " in text
        assert "was deployed again" in text
        assert "as attempt 2; it goes on from checkpoint " in text
        (tmp_path / "explained.txt").write_text(text)
        verdict = verify_cluster(scene.cluster, reading_codec(scene.cluster), now_ms())
        assert [each for each in verdict.findings if each.kind != "void"] == []
        assert verdict.shards[0].decided_again > 10
        assert verdict.shards[0].gaps == 0
