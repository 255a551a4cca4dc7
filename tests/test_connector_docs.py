"""The jobs in docs/connectors.md are jobs, and every connector is told of there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detent.job_kinds import kinds
from tests.test_docs import ROOT, blocks, ran

PAGE = ROOT / "docs/connectors.md"


@pytest.mark.parametrize("number", range(len(blocks(PAGE, "yaml"))))
def test_the_jobs_shown_are_valid(number: int, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(blocks(PAGE, "yaml")[number])
    done = ran([sys.executable, "-m", "detent", "validate", str(tmp_path / "job.yaml")], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_connector_is_told_of() -> None:
    told = PAGE.read_text()
    apart = {"generator", "files", "console"}  # docs/dataplane.md
    connectors = {name for (role, name), kind in kinds().items() if kind.engine == "spark" and role != "transform"}
    assert all(f"kind: {name}" in told for name in connectors - apart)
