"""What a guard ends: a program and all that it starts, however this process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedloom.deploy.child_program import ChildProgram, descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guards are for Linux")

# It starts one that leaves its session and ignores SIGTERM, and another, and ends late after SIGTERM in one thread.
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
PROGRAM = f"""
import subprocess, sys, time
ids = [subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True).pid,
       subprocess.Popen(["sleep", "300"]).pid]
print(*ids, flush=True)
time.sleep(300)
"""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ids_in(log: Path) -> list[int]:
    end = time.monotonic() + 20
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < end
        time.sleep(0.02)
    return [*map(int, log.read_text().split())]


def until_dead(processes: list[int]) -> None:
    end = time.monotonic() + 20
    while any(map(is_alive, processes)):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_program_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    guarded = ChildProgram([sys.executable, "-c", PROGRAM], os.environ, tmp_path / "log", 0.5)
    ids = ids_in(tmp_path / "log")
    assert all(map(is_alive, ids))
    assert set(ids) <= set(descendants(os.getpid()))
    guarded.close()
    assert guarded.has_ended
    assert not any(map(is_alive, ids))


def test_what_a_program_leaves_behind_is_ended(tmp_path: Path) -> None:
    program = PROGRAM.replace("time.sleep(300)\n", "sys.exit(3)\n")
    guarded = ChildProgram([sys.executable, "-c", program], os.environ, tmp_path / "log", 0.5)
    assert guarded.wait(20) == 3
    assert not any(map(is_alive, ids_in(tmp_path / "log")))
    guarded.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_ends_with_who_is_killed(number: int, tmp_path: Path) -> None:
    parent = f"""
import os, sys, time
from pathlib import Path
from fedloom.deploy.child_program import ChildProgram
guarded = ChildProgram([sys.executable, "-c", {PROGRAM!r}], os.environ, Path({str(tmp_path / "log")!r}), 0.5)
time.sleep(300)
"""
    process = subprocess.Popen([sys.executable, "-c", parent])
    ids = ids_in(tmp_path / "log")
    process.send_signal(number)
    process.wait(20)
    until_dead(ids)


def test_ctrl_c_is_not_for_the_guard(tmp_path: Path) -> None:
    guarded = ChildProgram(["sleep", "300"], os.environ, tmp_path / "log", 0.5)
    end = time.monotonic() + 20
    while not (found := descendants(guarded._guard.pid)):
        assert time.monotonic() < end
        time.sleep(0.02)
    guarded._guard.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert not guarded.has_ended
    guarded._guard.send_signal(signal.SIGTERM)
    guarded.wait(20)
    assert not any(map(is_alive, found))
    guarded.close()
