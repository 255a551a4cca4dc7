"""The worker's ledger on disk: what was told is there after a crash at any instant, and damage is never overlooked."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from tests.ledger_writer import DISK_FULL, STEP, after, hard
from tests.worker_bench import DEPLOY, Bench, order
from workers import store as stores
from workers.ledger import Held, Identity, Ledger, Phase, Put
from workers.store import LedgerDamaged, LedgerFailed, LedgerForeign

ROOT = Path(__file__).parent.parent
LOG = logging.getLogger(__name__)
KILLS = int(os.environ.get("DETENT_LEDGER_KILLS", "8"))


def made(path: Path, position: int = 0) -> Path:
    stores.create(path, "w1", "topic", 0, position).close()
    return path


def loaded(path: Path) -> tuple[Ledger, int]:
    store, ledger = stores.load(path)
    store.close()
    return ledger, store.position


def writer(path: Path, seed: int, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.ledger_writer", str(path), "--seed", str(seed), *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def raw(path: Path) -> Rdict:
    return Rdict(str(path), Options(raw_mode=True))


def with_entries(path: Path) -> Path:
    with writer(made(path), 1, "--steps", "200") as child:
        assert child.communicate(timeout=60)[0] == STEP * 200
    return path


def test_D9_a_ledger_killed_at_any_instant_is_a_prefix_of_what_was_decided(tmp_path: Path) -> None:
    seed = random.SystemRandom().randint(0, 2**31)
    LOG.warning("seed=%d", seed)
    rng, path, told = random.Random(seed), made(tmp_path / "ledger"), 0
    for _ in range(KILLS):
        with writer(path, seed) as child:
            assert child.stdout is not None
            count = rng.randint(1, 400)
            for _ in range(count):
                assert child.stdout.read(1) == STEP
            killing = threading.Timer(rng.random() * 0.01, child.kill)
            killing.start()
            told += count + len(child.stdout.read())
            killing.join()
        ledger, position = loaded(path)
        assert told <= position <= told + 1, f"seed {seed}: {told} steps were told, {position} are on disk"
        assert hard(ledger) == hard(after(seed, position)), f"seed {seed}, step {position}"
        told = position
    assert ledger.tasks, "nothing was written"


def test_a_full_disk_is_said_and_what_was_told_is_there(tmp_path: Path) -> None:
    path = made(tmp_path / "ledger")
    child = writer(path, 7, "--file-bytes", "60000")
    told, said = child.communicate(timeout=60)
    assert child.returncode == DISK_FULL, said
    assert "can't be written" in said.decode()
    assert "Free some space" in said.decode()
    ledger, position = loaded(path)
    assert 0 < len(told) <= position <= len(told) + 1
    assert hard(ledger) == hard(after(7, position))
    child = writer(path, 7, "--steps", str(position + 100))  # there is room again
    assert child.communicate(timeout=60)[0] == STEP * 100


def test_after_a_failure_nothing_more_is_taken(tmp_path: Path) -> None:
    store = stores.create(tmp_path / "ledger", "w1", "topic", 0, 0)
    store._db.close()
    entry = Held(who=Identity("j", 1, 0, 0, 1), epoch=1, phase=Phase.RUNNING)
    for _ in range(2):
        with pytest.raises(LedgerFailed, match="can't be written"):
            store.write([Put(entry)], 1)
    store.close()


def test_the_position_is_in_the_write_of_what_it_led_to(tmp_path: Path) -> None:
    store = stores.create(tmp_path / "ledger", "w1", "topic", 0, 41)
    assert (store.position, store.entries) == (41, 0)
    bench = Bench()
    store.write(bench.give(order(DEPLOY)).changes, 42)
    store.write((), 50)  # orders of others went by
    assert store.entries == 1
    store.close()
    ledger, position = loaded(tmp_path / "ledger")
    assert (position, hard(ledger)) == (50, hard(bench.ledger))


def test_a_creation_that_was_killed_leaves_nothing_that_looks_like_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.part").mkdir()
    (tmp_path / "ledger.part/CURRENT").write_text("MANIFEST-000001\n")
    assert loaded(made(tmp_path / "ledger", 3)) == (Ledger(), 3)


def test_the_ledger_of_another_worker_or_of_other_orders_is_refused(tmp_path: Path) -> None:
    store = stores.create(tmp_path / "ledger", "w1", "topic", 2, 0)
    stores.check(store, "w1", "topic", 2)
    for found, reason in [(("w2", "topic", 2), "is worker w1's"), (("w1", "new", 2), "was made anew"),
                          (("w1", "topic", 1), "on partition 2")]:  # fmt: skip
        with pytest.raises(LedgerForeign, match=reason):
            stores.check(store, *found)
    store.close()


# Damage --------------------------------------------------------------------------------------------------------------


def log_of(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda log: log.stat().st_size)


def refused(path: Path, reason: str) -> None:
    with pytest.raises(LedgerDamaged, match=reason) as caught:
        stores.load(path)
    assert "Move that directory away and start again" in str(caught.value)
    assert "begins with an empty ledger" in str(caught.value)


def test_damage_inside_the_log_is_refused(tmp_path: Path) -> None:
    path = with_entries(tmp_path / "ledger")
    log = log_of(path)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)
    refused(path, "is damaged")


def test_half_a_write_at_the_end_is_one_that_never_was(tmp_path: Path) -> None:
    path = with_entries(tmp_path / "ledger")
    log = log_of(path)
    os.truncate(log, log.stat().st_size - 3)
    ledger, position = loaded(path)
    assert position == 199
    assert hard(ledger) == hard(after(1, 199))


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    path = with_entries(tmp_path / "ledger")
    for file in path.glob(name):
        file.unlink()
    refused(path, "is damaged")


def test_a_missing_entry_is_refused(tmp_path: Path) -> None:
    path = with_entries(tmp_path / "ledger")
    with raw(path) as db:
        del db[next(key for key in db.keys() if key != stores.ABOUT)]  # noqa: SIM118
    refused(path, "entries where")


def test_an_entry_that_is_none_or_under_a_wrong_key_is_refused(tmp_path: Path) -> None:
    path = with_entries(tmp_path / "ledger")
    with raw(path) as db:
        key = next(key for key in db.keys() if key != stores.ABOUT)  # noqa: SIM118
        before, db[key] = db[key], b"\x00rubbish"
    refused(path, "can't be read")
    with raw(path) as db:
        db[key] = before
    loaded(path)
    with raw(path) as db:
        del db[key]
        db[b"task/another/0/0"] = before
    refused(path, "is about")


@pytest.mark.parametrize(("about", "reason"), [(None, "does not say what it is"), (b"?", "does not say what it is")])
def test_a_ledger_that_does_not_say_what_it_is_is_refused(tmp_path: Path, about: bytes | None, reason: str) -> None:
    path = with_entries(tmp_path / "ledger")
    with raw(path) as db:
        del db[stores.ABOUT]
        if about:
            db[stores.ABOUT] = about
    refused(path, reason)
