"""The rules of the house that a machine can keep: import directions, pure modules, small functions and files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"schemas", "events", "coordinator", "workers", "detent"}
MAY_IMPORT = {
    "schemas": set(),
    "events": {"schemas"},
    "coordinator": {"events", "schemas"},
    "workers": {"events", "schemas"},
    "detent": OURS,
}
# Modules that decide or fold: no broker, no clock, no chance, no disk, no network, no threads.
PURE = [
    "events/table.py", "events/keys.py", "events/encoding.py", "events/records.py", "events/outcomes.py",
    "coordinator/lifecycle.py", "coordinator/specification.py", "coordinator/state.py", "coordinator/draft.py",
    "coordinator/deploy.py",
    "coordinator/checkpoint.py", "coordinator/ending.py", "coordinator/failure.py", "coordinator/commands.py",
    "coordinator/reports.py", "coordinator/settle.py", "coordinator/core.py", "coordinator/submit.py",
    "coordinator/restore.py", "coordinator/savepoint.py", "coordinator/repair.py", "coordinator/quarantine.py",
    "coordinator/errors.py", "coordinator/membership.py", "coordinator/health.py", "coordinator/rerun.py",
    "coordinator/words.py", "coordinator/views.py", "coordinator/viewing.py", "coordinator/cluster_viewing.py",
    "coordinator/graph.py", "coordinator/job_index.py", "coordinator/lines.py", "coordinator/health_watch.py",
    "coordinator/shard_reading.py",
    "coordinator/history.py", "coordinator/timeline.py", "coordinator/explain.py", "coordinator/story.py",
    "coordinator/waits.py", "coordinator/ignored.py", "coordinator/phrases.py", "coordinator/verify.py",
    "coordinator/rerun_log.py",
    "workers/core.py", "workers/attempts.py", "workers/ledger.py", "workers/happenings.py",
    "workers/plan.py",
]  # fmt: skip
IMPURE_IMPORTS = {
    "asyncio", "confluent_kafka", "datetime", "http", "io", "logging", "multiprocessing", "os", "pathlib", "pyspark",
    "random", "rocksdict", "secrets", "shutil", "socket", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
GENERATED = {"events/records.py"}
FILES = sorted(p for package in OURS for p in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_the_way_of_the_design(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    wrong = {name for name in imports(path) if name.split(".")[0] in OURS - MAY_IMPORT[package] - {package}}
    assert not wrong, f"{package} may import {MAY_IMPORT[package] or 'none of ours'}, not {wrong}"


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_touch_nothing(name: str) -> None:
    wrong = {module for module in imports(ROOT / name) if module.split(".")[0] in IMPURE_IMPORTS}
    assert not wrong, f"{name} is pure and imports {wrong}"
    called = {n.func.id for n in ast.walk(ast.parse((ROOT / name).read_text()))
              if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}  # fmt: skip
    assert not called & {"open", "print", "input"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_fit_the_eye(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not tree.body, "a module opens with what it is responsible for"
    if name_of(path) in GENERATED:
        return
    assert text.count("\n") <= 400
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {f.name: length for f in functions if (length := (f.end_lineno or 0) - f.lineno + 1) > 60}
    assert not long, "a function fits on a screen"


def test_the_check_of_pure_modules_can_see(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import time\nfrom confluent_kafka import Consumer\n")
    assert imports(tmp_path / "m.py") & IMPURE_IMPORTS == {"time", "confluent_kafka"}


def test_no_registry_and_no_machine_is_named() -> None:
    """Committed files name packages and sums, never where somebody gets them from."""
    jars = ("events/kafka.jars.sha256", "events/spark.jars.sha256", "bench/connector.jars.sha256")
    for name in ("requirements.txt", "pyproject.toml", "Makefile", ".ci/run", *jars):
        text = (ROOT / name).read_text()
        assert "://" not in text, name
        assert "--index-url" not in text
        assert "--find-links" not in text
