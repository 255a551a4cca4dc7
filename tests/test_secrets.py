"""Secrets of jobs: named on the log, looked up on the worker, shown nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.plan import OptionsRefused
from workers.secrets import Secret, Secrets


def test_where_secrets_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hush-hush")
    (tmp_path / "p").write_text("of the file\n")
    secrets = Secrets("db")
    assert secrets.values({"password": Secret("env:DB_PASSWORD"), "user": "me", "n": 3}) == {
        "password": "hush-hush", "user": "me", "n": 3}  # fmt: skip
    assert secrets.text(Secret(f"file:{tmp_path / 'p'}")) == "of the file"
    assert secrets.hide("login with hush-hush of the file failed") == "login with ******** ******** failed"


def test_what_can_not_be_had_is_named_and_nothing_more(tmp_path: Path) -> None:
    with pytest.raises(OptionsRefused, match=r"env:NOT_THERE_AT_ALL.*not in the worker's environment"):
        Secrets("db").text(Secret("env:NOT_THERE_AT_ALL"))
    with pytest.raises(OptionsRefused, match="can't be read: No such file"):
        Secrets("db").text(Secret(f"file:{tmp_path / 'none'}"))


def test_a_secret_that_is_written_out_is_refused_and_not_repeated() -> None:
    with pytest.raises(OptionsRefused, match="looks like a secret") as caught:
        Secrets("db").values({"sasl.password": "hush-hush"})
    assert "hush-hush" not in str(caught.value)
