"""The contract for services in other languages: the AsyncAPI document is current, and a program that knows nothing of
Detent's libraries submits a job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from bench.fleet import Fleet, published
from detent.contract import CHANNELS, document, text
from events.confluent import TOPIC_OF
from events.topics import TopicSettings, plans
from tests.test_client import fleet  # noqa: F401  the fixture

ROOT = Path(__file__).parent.parent


def test_the_asyncapi_document_is_current() -> None:
    """`make docs` writes it anew."""
    assert (ROOT / "docs/asyncapi.yaml").read_text() == text()


def test_every_topic_and_record_is_in_it() -> None:
    found = document()
    assert set(found["channels"]) == {plan.name for plan in plans(TopicSettings())} - {"schemas"}
    assert {channel.record: channel.topic for channel in CHANNELS} == TOPIC_OF
    assert yaml.safe_load(text()) == json.loads(json.dumps(found))
    for operation in found["operations"].values():
        assert operation["channel"]["$ref"].removeprefix("#/channels/") in found["channels"]


def without(program: str) -> str:
    return "" if shutil.which(program) else f"there is no {program} here"


@pytest.fixture(scope="module")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with what it needs. Skipped where npm or its registry can't be had, never in CI."""
    directory = tmp_path_factory.mktemp("javascript")
    for name in ("package.json", "submit.mjs"):
        shutil.copy(ROOT / "examples/javascript" / name, directory)
    missing = without("node") or without("npm")
    if not missing:
        install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
        done = subprocess.run(install, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
        missing = f"npm install failed: {done.stderr[-500:]}" if done.returncode else ""
    if missing and "CI" in os.environ:
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    return directory


@pytest.mark.broker
def test_a_program_in_javascript_submits_a_job(javascript: Path, fleet: Fleet, tmp_path: Path) -> None:  # noqa: F811
    sink = {"name": "out", "kind": "lines", "from": ["in"], "options": {"path": str(tmp_path / "out")}}
    source = {"name": "in", "kind": "numbers", "options": {"rows": 50}}
    (tmp_path / "job.json").write_text(json.dumps({"source": [source], "sink": [sink]}))
    cluster = fleet.cluster
    command = ["node", "submit.mjs", cluster.bootstrap_servers, cluster.prefix, "høllo", str(tmp_path / "job.json")]
    done = subprocess.run(command, cwd=javascript, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith("ACCEPTED: incarnation")
    assert done.stdout.endswith("→ FINISHED\n")
    assert len(published(tmp_path / "out")) == 50
    again = subprocess.run(command, cwd=javascript, capture_output=True, text=True, timeout=100, check=False)
    assert again.returncode == 1
    assert again.stdout.startswith("REFUSED: høllo has ended (FINISHED)")
