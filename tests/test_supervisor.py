"""What keeps processes going: restarts with growing pauses, giving up with the reason, stopping in order, and nothing
left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detent.supervisor import Change, GivenUp, Program, Supervisor
from tests.logs import until

ROOT = Path(__file__).parent.parent
SLEEPS = [sys.executable, "-c", "import signal; signal.pause()"]


def fails(code: int = 3) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.exit('no such thing' if {code} == 1 else {code})"]


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def ended(supervisor: Supervisor, name: str) -> bool:
    return not supervisor.running[name].alive


def test_a_process_that_ends_is_started_again_after_a_pause_that_doubles(tmp_path: Path) -> None:
    told: list[Change] = []
    clock = Clock()
    with Supervisor([Program("p", fails())], tmp_path, told.append, clock) as supervisor:
        for pause_s in (0.5, 1.0, 2.0):
            until(lambda: ended(supervisor, "p"), "its end")
            supervisor.tend()
            assert told[-1] == Change("p", "ended", f"with exit code 3; it is started again in {pause_s:g} s")
            clock.at += pause_s - 0.01
            supervisor.tend()
            assert told[-1].what == "ended"
            clock.at += 0.02
            supervisor.tend()
            assert told[-1].what == "started"


def test_one_that_ends_again_and_again_is_given_up_with_what_it_said(tmp_path: Path) -> None:
    clock = Clock()
    with (
        Supervisor([Program("p", fails(1))], tmp_path, lambda _: None, clock) as supervisor,
        pytest.raises(
            GivenUp, match=r"(?s)p has ended 5 times in a short time, the last time with exit code 1.*no such thing"
        ),
    ):
        for _ in range(10):
            until(lambda: ended(supervisor, "p"), "its end")
            supervisor.tend()
            clock.at += 20
            supervisor.tend()


def test_one_that_has_lived_long_is_forgiven(tmp_path: Path) -> None:
    told: list[Change] = []
    clock = Clock()
    with Supervisor([Program("p", SLEEPS)], tmp_path, told.append, clock) as supervisor:
        for _ in range(6):
            clock.at += 60
            assert supervisor.kill("p")
            supervisor.tend()
            assert told[-1].detail == "by SIGKILL; it is started again in 0.5 s"
            clock.at += 1
            supervisor.tend()
        assert supervisor.running["p"].restarts == 6


def test_they_stop_in_the_order_of_their_ranks_and_who_does_not_is_killed(tmp_path: Path) -> None:
    deaf = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    )
    order = str(tmp_path / "order")
    note = "import signal, sys\n"
    note += f"def end(*_):\n    open({order!r}, 'a').write(sys.argv[1])\n    sys.exit()\n"
    note += "signal.signal(signal.SIGTERM, end); print('ready', flush=True); signal.pause()"
    programs = [
        Program("second", [sys.executable, "-c", note, "2"], 1),
        Program("first", [sys.executable, "-c", note, "1"], 0),
        Program("deaf", [sys.executable, "-c", deaf], 0),
    ]
    with Supervisor(programs, tmp_path / "logs", lambda _: None) as supervisor:
        until(lambda: all(it.said() for it in supervisor.running.values()), "all to run")
        pids = [it.pid for it in supervisor.running.values()]
        supervisor.stop(patience_s=1.0)
    assert (tmp_path / "order").read_text() == "12"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


OWNER = """
import signal, sys
from pathlib import Path
from detent.supervisor import Program, Supervisor
program = "from detent.tether import tie_if_asked; tie_if_asked(); import signal; signal.pause()"
command = [sys.executable, "-c", program]
with Supervisor([Program("p", command)], Path(sys.argv[1]), lambda _: None) as supervisor:
    print(supervisor.running["p"].pid, flush=True)
    signal.pause()
"""


def test_what_it_started_ends_when_it_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, env=environment, cwd=ROOT
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    until(lambda: not is_running(pid), "its end")


def is_running(pid: int) -> bool:
    """A process that nobody has waited for yet is there, but does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
