"""Finding Java: the right one, or an error that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.java import Java, JavaTooOld, JavaUnusable, NoJava, find_java


def make_jdk(home: Path, release: str | None, script: str = "") -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return executable


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    chosen = make_jdk(tmp_path / "home", "17.0.1")
    other = make_jdk(tmp_path / "other", "21")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert find_java(environment) == Java(chosen, "17.0.1")
    assert find_java({"PATH": str(other.parent)}) == Java(other, "21")


def test_a_java_home_without_java_leaves_it_to_path(tmp_path: Path) -> None:
    executable = make_jdk(tmp_path / "jdk", "25-ea")
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": str(executable.parent)}) == Java(executable, "25-ea")


def test_a_wrapper_is_asked_for_the_real_java(tmp_path: Path) -> None:
    real = make_jdk(tmp_path / "jdk", "17.0.9")
    told = f"printf '    java.home = {tmp_path}/jdk\\n    java.version = 17.0.9\\n' >&2"
    wrapper = make_jdk(tmp_path / "shims", None, told)
    assert find_java({"PATH": str(wrapper.parent)}) == Java(real, "17.0.9")


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match=r"JAVA_HOME \(/nowhere\) holds no bin/java.*Install a JDK 17 or newer"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(tmp_path)})
    with pytest.raises(NoJava, match="JAVA_HOME is not set"):
        find_java({})


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_392"])
def test_an_old_java(tmp_path: Path, version: str) -> None:
    executable = make_jdk(tmp_path, version)
    with pytest.raises(JavaTooOld) as caught:
        find_java({"JAVA_HOME": str(tmp_path)})
    assert (caught.value.executable, caught.value.version) == (executable, version)
    assert "17 or newer is needed" in str(caught.value)


def test_a_java_that_does_not_work(tmp_path: Path) -> None:
    make_jdk(tmp_path, None, "echo Unable to locate a Java Runtime. >&2; exit 1")
    with pytest.raises(JavaUnusable, match="Unable to locate a Java Runtime"):
        find_java({"JAVA_HOME": str(tmp_path)})
