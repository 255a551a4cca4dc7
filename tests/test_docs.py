"""What the documents show is run: commands exist and work, and the tour's program prints what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from events.embedded import EmbeddedBroker

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "schemas/README.md"])


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


COMMANDS = [
    (path.name, line.split("#")[0].strip())
    for path in DOCUMENTS
    for block in blocks(path, "sh")
    for line in block.splitlines()
    if line.strip()
]


def ran(command: list[str], state: Path, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DETENT_STATE": str(state), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=limit_s, check=False
    )


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_every_command_in_the_documents_is_one(document: str, command: str, tmp_path: Path) -> None:
    words = command.removesuffix("&").split()
    if words[0] == "make":
        assert ran(["make", "--dry-run", words[1]], tmp_path).returncode == 0
    elif words[0] == ".venv/bin/detent":
        options = [] if "--help" in words else ["--help"]
        assert ran([sys.executable, "-m", "detent", *words[1:], *options], tmp_path).returncode == 0
    elif words[0] in ("npm", "node"):
        assert (ROOT / "examples/javascript/submit.mjs").exists()  # tests/test_contract.py runs it
    else:
        assert words[:2] == [".venv/bin/python", "-m"], f"this test does not know how to run {command}"
        shown = ran([sys.executable, "-m", words[2], "--help"], tmp_path)
        assert shown.returncode == 0
        assert all(word in shown.stdout for word in words if word.startswith("--"))


@pytest.mark.broker
def test_the_demo(tmp_path: Path) -> None:
    done = ran([sys.executable, "-m", "detent", "demo", "--rows", "1500000", "--set", "web.port=0"], tmp_path, 280)
    assert done.returncode == 0, done.stderr
    assert "kill -9 of coordinator" in done.stdout
    assert "has taken over in" in done.stdout
    assert "kill -9 of worker" in done.stdout
    assert "each of the source's is there, exactly once" in done.stdout
    assert not done.stderr


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_files_that_the_map_names_are_there() -> None:
    for name in re.findall(r"`((?:events|detent|schemas|tests)/[\w*./]+)`", (ROOT / "ARCHITECTURE.md").read_text()):
        assert list(ROOT.glob(name)), f"ARCHITECTURE.md names {name}"


@pytest.mark.broker
@pytest.mark.parametrize(
    "arguments",
    [
        ["bench.replay", "--events", "20000", "--keys", "1000"],
        ["bench.write", "--events", "5000", "--keys", "100"],
        ["bench.restart", "--lengths", "3000", "6000", "--keys", "500", "--entities", "1000"],
        ["bench.fence"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_benchmarks_run_and_their_exit_code_is_their_verdict(
    arguments: list[str], broker: EmbeddedBroker, tmp_path: Path
) -> None:
    options = ["--bootstrap-servers", broker.bootstrap_servers, "--repetitions", "1", "--json"]
    done = ran([sys.executable, "-m", *arguments, *options], tmp_path)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["name"] == arguments[0].removeprefix("bench.")
    assert result["figures"]
    assert result["bars"]
    assert all(set(bar) == {"name", "value", "relation", "bound", "met"} for bar in result["bars"])
    assert done.returncode == (0 if all(bar["met"] for bar in result["bars"]) else 1), done.stderr
