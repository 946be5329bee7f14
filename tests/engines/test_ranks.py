"""Ranks over Gloo and MPI: the bits of the loop, whoever is lost or late."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import launching
import pytest

from fedloom import RunSettings, run
from fedloom.algorithms import FedAvg
from fedloom.core.errors import SettingError
from fedloom.engines import communication
from tiny import LOCAL, federation, mlp

sys.path.insert(0, str(Path(__file__).parents[1] / "attack"))

import ranks

PROGRAM = str(Path(__file__).parent / "ranks_program.py")
LAUNCH: dict[str, Callable[[Sequence[str]], Any]] = {"gloo": launching.gloo, "mpi": launching.mpi}
# A mean, two states, rows at the server, several exchanges, a server that trains, an upload that may be absent.
ALGORITHMS = ("fedavg", "scaffold", "fedfomo", "kt_pfl", "dense", "apfl_ni")


@pytest.mark.slow
@pytest.mark.parametrize("transport", LAUNCH)
def test_the_bits_of_the_loop(transport: str) -> None:
    """Also: who is late is left out and its late answer dropped, and ranks of different jobs find each other out."""
    found = launching.ended(LAUNCH[transport]([PROGRAM, transport, *ALGORITHMS]))
    said = "".join(text for _, text in found)
    assert {status for status, _ in found} == {0}, said
    assert [f"rank {rank} of 3: done" in said for rank in range(3)] == [True] * 3, said


@pytest.mark.slow
@pytest.mark.parametrize("transport", LAUNCH)
def test_rank_0_alone_prints_and_writes(transport: str, tmp_path: Path) -> None:
    command = ["-m", "fedloom", "run", "fedavg", "--model", "logistic", "--clients", "5", "--cohort", "4"]
    command += ["--rounds", "2", "--epochs", "1", "--threads", "1", "--out"]
    for engine in ("loop", transport):
        program = [*command, str(tmp_path / engine), "--engine", engine]
        found = launching.ended(LAUNCH[engine](program) if engine in LAUNCH else launching.gloo(program, size=1))
        said = "".join(text for _, text in found)
        assert {status for status, _ in found} == {0}, said
        assert said.count("fedavg: ") == 1, said
    logs = [(tmp_path / engine / "metrics.jsonl").read_bytes() for engine in ("loop", transport)]
    assert logs[0] == logs[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")
@pytest.mark.parametrize(("transport", "victim"), [("gloo", "rank"), ("gloo", "server"), ("mpi", "rank")])
def test_killed_ranks(transport: str, victim: str, tmp_path: Path) -> None:
    if transport == "mpi":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    killed, wrong = ranks.attack(transport, victim, 1, 0, tmp_path, rounds=20)
    assert wrong == []
    assert killed == 1


# ---- what is refused


def test_ranks_must_be_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RunSettings(rounds=1, cohort_size=2, engine="gloo")
    with pytest.raises(SettingError, match=r"needs at least 2 ranks, .* there are none: launch them by torchrun"):
        run(FedAvg(local=LOCAL), federation(), mlp, settings)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(SettingError, match="there is one: launch them"):
        run(FedAvg(local=LOCAL), federation(), mlp, settings)


def test_mpi_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(SettingError, match=r"engine = 'mpi' needs mpi4py .*: pip install fedloom\[mpi\]"):
        communication.rank_here("mpi")


def test_a_deadline_is_for_clients_in_other_processes() -> None:
    with pytest.raises(SettingError, match="deadline must be > 0 seconds or None"):
        RunSettings(deadline=0)
    settings = RunSettings(rounds=1, cohort_size=2, engine="loop", deadline=1.0)
    with pytest.raises(SettingError, match="this run has the engine loop: use engine = 'workers', 'gloo' or 'mpi'"):
        run(FedAvg(local=LOCAL), federation(), mlp, settings)


@pytest.mark.parametrize("size", [-1, 1 << 50])
def test_nothing_is_made_for_a_message_that_is_too_large(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gloo = object.__new__(communication.GlooManager)
    gloo.group = None
    monkeypatch.setattr("torch.distributed.recv", lambda tensor, rank, group: tensor.fill_(size))
    with pytest.raises(EOFError, match=f"rank 3 sends {size} bytes, and at most 17179869184 are taken"):
        gloo._receive(3)
