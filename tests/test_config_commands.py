"""`detent config`, and the options that commands share, as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from detent.settings_text import page
from events.broker_state import broker_directory

ROOT = Path(__file__).parent.parent


def detent(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a directory and an environment of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DETENT_")}
    environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | variables
    command = [sys.executable, "-m", "detent", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=directory, timeout=60, check=False
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("swordfish\n")
    (tmp_path / "detent.toml").write_text(
        """\
        state_dir = "state"
        [kafka]
        sasl.password = "${file:secret}"
        sasl.username = "swordfish"
        [coordinator]
        detection_ms = 300
        """
    )
    return tmp_path


def test_show_is_a_file_with_the_origin_behind_each_line(directory: Path) -> None:
    shown = detent(directory, "config", "show", "--set", "web.port=1", DETENT_COORDINATOR__BEAT_MS="50")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = {line.split("=")[0].strip(): line.split("  # ")[1] for line in shown.stdout.splitlines()}
    assert lines["state_dir"] == "detent.toml:1"
    assert lines["coordinator.detection_ms"] == "detent.toml:6"
    assert lines["coordinator.beat_ms"] == "DETENT_COORDINATOR__BEAT_MS"
    assert lines["web.port"] == "--set"
    assert lines["worker.slots"] == "default"
    document = tomllib.loads(shown.stdout)
    assert document["kafka"]["sasl.password"] == "${file:secret}"
    assert document["kafka"]["sasl.username"] == "********"
    assert "swordfish" not in shown.stdout


def test_show_for_programs_and_only_what_is_changed(directory: Path) -> None:
    shown = detent(directory, "config", "show", "--json", "--changed", "--config", "detent.toml")
    assert json.loads(shown.stdout) == {
        "state_dir": {"value": "state", "origin": "detent.toml:1"},
        "kafka.sasl.password": {"value": "${file:secret}", "origin": "detent.toml:3"},
        "kafka.sasl.username": {"value": "********", "origin": "detent.toml:4"},
        "coordinator.detection_ms": {"value": 300, "origin": "detent.toml:6"},
    }


def test_docs_prints_the_page(tmp_path: Path) -> None:
    assert detent(tmp_path, "config", "docs").stdout == page()


def test_errors_are_advice_and_exit_codes_tell_the_kind(directory: Path) -> None:
    wrong = detent(directory, "config", "show", "--set", "coordinator.beet_ms=3")
    assert (wrong.returncode, wrong.stdout) == (3, "")
    assert wrong.stderr == (
        "Error: the settings can't be used. --set: coordinator.beet_ms is no setting; did you mean "
        "coordinator.beat_ms?\n"
    )
    assert detent(directory, "config", "show", "--config", "none.toml").returncode == 1
    usage = detent(directory, "config", "show", "--set", "coordinator.beat_ms")
    assert usage.returncode == 2
    assert "is not NAME=VALUE" in usage.stderr


def test_the_broker_is_looked_for_where_the_settings_say(directory: Path) -> None:
    def looked_in(*options: str, **variables: str) -> str:
        asked = detent(directory, "broker", "status", *options, **variables)
        assert asked.returncode == 3, asked.stderr
        return asked.stdout.removeprefix("No broker runs in ").split(". It starts")[0]

    assert looked_in() == str(broker_directory(directory / "state"))
    assert looked_in(DETENT_STATE="by-variable") == str(broker_directory(directory / "by-variable"))
    assert looked_in("--set", "state_dir=set", DETENT_STATE="v") == str(broker_directory(directory / "set"))
    assert looked_in("--state-dir", "own", "--set", "state_dir=set") == str(broker_directory(directory / "own"))
    (directory / "detent.toml").unlink()
    assert looked_in() == str(broker_directory(directory / ".detent"))
