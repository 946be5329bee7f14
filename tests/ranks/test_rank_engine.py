"""Ranks over Gloo and MPI: the bits of the loop, whoever is lost or late."""

from __future__ import annotations

import dataclasses
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import launching
from fedloom import RunSettings, models, run
from fedloom.algorithms import FedAvg, Scaffold
from fedloom.cli.main import main
from fedloom.core.errors import RankError, SettingError
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.runtime import Runtime
from fedloom.engines.service import Service
from fedloom.ranks import communication, launched, over_gloo, over_mpi, rank_engine as wire_ranks
from fedloom.ranks.communication import CLOSED
from fedloom.ranks.rank_engine import _LOCAL as LOCAL_NUMBERS, HEAD, Gloo, Ranks, own_device
from fedloom.tasks import Classification
from fedloom.testing.compare import same
from fedloom.testing.in_process import InProcess
from tiny import CLASSES, LOCAL, federation, mlp, population

sys.path.insert(0, str(Path(__file__).parents[1] / "attack"))

import ranks

PROGRAM = str(Path(__file__).parent / "ranks_program.py")
LAUNCH: dict[str, Callable[[Sequence[str]], Any]] = {
    "gloo": lambda program: launching.gloo([program] * 3),
    "mpi": launching.mpi,
}
# A mean, two states, rows at the server, several exchanges, a server that trains, an upload that may be absent.
ALGORITHMS = ("fedavg", "scaffold", "fedfomo", "kt_pfl", "dense", "apfl_ni")


@pytest.mark.slow
@pytest.mark.parametrize("transport", LAUNCH)
def test_the_bits_of_the_loop(transport: str) -> None:
    """Also those of a stack; who is late, or answers twice, damaged or absurd, changes nothing; and ranks of different
    jobs find each other out.
    """
    found = launching.ended(LAUNCH[transport]([PROGRAM, transport, *ALGORITHMS]))
    said = "".join(text for _, text in found)
    assert {status for status, _ in found} == {0}, said
    assert [f"rank {rank} of 3: done" in said for rank in range(3)] == [True] * 3, said


@pytest.mark.slow
@pytest.mark.parametrize("transport", LAUNCH)
def test_rank_0_alone_prints_and_writes(transport: str, tmp_path: Path) -> None:
    command = ["-m", "fedloom", "run", "fedavg", "--model", "logistic", "--clients", "5", "--cohort", "4"]
    command += ["--rounds", "2", "--epochs", "1", "--threads", "1", "--out"]
    found = launching.ended(LAUNCH[transport]([*command, str(tmp_path / transport), "--engine", transport]))
    said = "".join(text for _, text in found)
    assert {status for status, _ in found} == {0}, said
    assert said.count("fedavg: ") == 1, said
    assert main([*command[2:], str(tmp_path / "loop"), "--engine", "loop"]) == 0
    logs = [(tmp_path / engine / "metrics.jsonl").read_bytes() for engine in ("loop", transport)]
    assert logs[0] == logs[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:not taken from")
def test_ranks_begin_with_a_file_and_go_on_without_it(tmp_path: Path) -> None:
    """A frozen front that is computed once at each rank; the run's directory has what the file had."""
    start = tmp_path / "start.safetensors"
    torch.manual_seed(3)
    save_file(models.build("mlp", (1, 28, 28), 10).state_dict(), start)
    command = [
        "-m",
        "fedloom",
        "run",
        "scaffold",
        "--model",
        "mlp",
        "--clients",
        "5",
        "--cohort",
        "4",
        "--threads",
        "1",
    ]
    command += ["--set", "data.examples=300", "--epochs", "1", "--start", str(start), "--start-only", "* !last:1"]
    command += ["--frozen", "* !last:1", "--rounds"]

    def ranks_run(program: list[str]) -> str:
        found = launching.ended(LAUNCH["gloo"](program))
        said = "".join(text for _, text in found)
        assert {status for status, _ in found} == {0}, said
        return said

    assert main([*command[2:], "6", "--engine", "loop", "--out", str(tmp_path / "loop")]) == 0
    ranks_run([*command, "4", "--engine", "gloo", "--out", str(tmp_path / "ranks")])
    start.unlink()
    ranks_run(["-m", "fedloom", "resume", str(tmp_path / "ranks"), "--rounds", "6"])
    logs = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("loop", "ranks")]
    assert logs[0] == logs[1]
    assert [p.name for p in (tmp_path / "ranks").glob("*.safetensors")] == ["initial-0.safetensors"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")
@pytest.mark.parametrize(("transport", "victim"), [("gloo", "server"), ("mpi", "rank")])
def test_killed_ranks(transport: str, victim: str, tmp_path: Path) -> None:
    if transport == "mpi":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    killed, wrong = ranks.attack(transport, victim, 1, 0, tmp_path, rounds=8)
    assert wrong == []
    assert killed == 1


@pytest.mark.parametrize(
    ("device", "environment", "want"),
    [
        ("cpu", {"LOCAL_RANK": "3"}, "cpu"),
        ("cuda:1", {"LOCAL_RANK": "3"}, "cuda:1"),
        ("cuda", {"LOCAL_RANK": "1"}, "cuda:1"),
        ("cuda", {"OMPI_COMM_WORLD_LOCAL_RANK": "3"}, "cuda:1"),
        ("cuda", {"SLURM_LOCALID": "2"}, "cuda:0"),
        ("cuda", {}, "cuda:0"),
    ],
)
def test_each_rank_has_a_gpu_of_its_own_where_there_are_two(
    device: str, environment: dict[str, str], want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LOCAL_NUMBERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert own_device(torch.device(device)) == torch.device(want)


# ---- who was gone and is back


class Within(Ranks):
    """Over ranks that are in this process."""

    name, transport = "gloo", "gloo"
    wires: Any = None


def rank(engine: Ranks, job: str | None = None, dead: Sequence[object] = ()) -> Callable[[bytes], bytes]:
    """What a rank answers, as `serve` does; gone once `dead` holds something. `job`: another than the engine has."""
    service = Service(Runtime(engine.population, engine.algorithm), trusted=True)

    def answer(data: bytes) -> bytes:
        if dead:
            raise EOFError
        return HEAD + (job or engine._job_digest()).encode() if data[:1] == b"{" else service(data) if data else CLOSED

    return answer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is asked again")
def test_a_rank_that_is_started_again_is_asked_again() -> None:
    algorithm, dead = Scaffold(local=LOCAL), list[bool]()
    engine, loop = Within(population(mlp), algorithm), Loop(population(mlp), algorithm)
    wires = engine.wires = InProcess([rank(engine, dead=dead), rank(engine, dead=dead)])
    engine.open()
    server, want = engine.init(), loop.init()
    for t in range(4):
        if t == 1:
            other = wires.come(rank(engine, job="another"))
            back = wires.come(rank(engine))
        if t == 2:
            dead.append(True)
        server, want = engine.round(server, (0, 2, 3), t), loop.round(want, (0, 2, 3), t)
        assert engine.ranks == ([1, 2] if t == 0 else [1, 2, back] if t == 1 else [back])
    same(want, server, "ranks that come and go")
    assert other not in engine.ranks
    engine.close()


# ---- what is refused


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ([1], "2 of 3 ranks have connected in 0.01 s: start"),
        ([1, 2], "rank 1 is connected and has not named its job in 0.01 s"),
    ],
)
def test_the_wait_for_a_rank_ends(arrivals: list[int], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_ranks, "COMING", 0.01)
    engine = Within(population(mlp), FedAvg(local=LOCAL))
    engine.wires = Mock(expected=2, arrivals=lambda: arrivals, wait=lambda ranks, timeout: [])
    with pytest.raises(RankError, match=message):
        engine.open()


def test_ranks_must_be_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RunSettings(rounds=1, cohort_size=2, engine="gloo")
    with pytest.raises(SettingError, match=r"needs at least 2 ranks .*, got 0: launch them by torchrun"):
        run(FedAvg(local=LOCAL), federation(), mlp, settings)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(SettingError, match="got 1: launch them"):
        run(FedAvg(local=LOCAL), federation(), mlp, settings)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SettingError, match=r"ranks over Gloo need RANK .*, and MASTER_ADDR is not set: set all four"):
        run(FedAvg(local=LOCAL), federation(), mlp, settings)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(
        SettingError, match=r"RANK is a whole number that is at least 0, got 'one': set RANK \(0 of the"
    ):
        run(FedAvg(local=LOCAL), federation(), mlp, settings)


def test_mpi_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(SettingError, match=r"engine = 'mpi' needs mpi4py .*: pip install '<PATH>\[mpi\]', where"):
        launched.rank_here("mpi")


def test_a_deadline_is_for_clients_in_other_processes() -> None:
    with pytest.raises(SettingError, match="deadline must be > 0"):
        RunSettings(deadline=0)
    settings = RunSettings(rounds=1, cohort_size=2, engine="loop", deadline=1.0)
    with pytest.raises(SettingError, match="this run has the engine loop: use engine = 'workers', 'gloo' or 'mpi'"):
        run(FedAvg(local=LOCAL), federation(), mlp, settings)


@pytest.mark.parametrize("size", [-1, 1 << 50])
def test_nothing_is_made_for_a_message_that_is_too_large(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gloo = object.__new__(over_gloo.GlooManager)
    gloo._due = {3: threading.Semaphore(1)}
    monkeypatch.setattr(gloo, "_transfer", lambda rank, way, tensor: tensor.fill_(size))
    with pytest.raises(EOFError, match=f"rank 3 sends {size} bytes, and at most 17179869184 are taken"):
        gloo._receive(3)


@pytest.mark.parametrize("size", [-1, 1 << 50])
def test_over_mpi_a_rank_that_sends_too_much_is_gone(size: int) -> None:
    comm, status = Mock(), Mock()
    comm.Iprobe.return_value, status.return_value.Get_count.return_value = True, size
    mpi, coming = object.__new__(over_mpi.MPIManager), dict[int, Any]()
    communication.ThreadedManager.__init__(mpi, 0, 4)
    mpi._add_rank(3)
    mpi.comm, mpi._status, mpi._bytes, mpi._pending = comm, status, None, Counter({3: 1})
    mpi._start(3, coming)
    assert not coming
    assert not comm.Irecv.called
    assert mpi.wait([3], 0.0) == [3]
    with pytest.raises(EOFError):
        mpi.take(3)


def test_ranks_with_other_weights_to_start_from_run_another_job() -> None:
    def about(model: Any) -> str:
        return Gloo(population(model), FedAvg(local=LOCAL))._job_digest()

    torch.manual_seed(1)
    one, other = mlp(), mlp()
    assert about(one) == about(one) != about(other)
    assert about(mlp) == about(mlp)  # of the seed


def test_ranks_with_another_task_other_measures_or_another_bound_run_another_job() -> None:
    class Softly(Classification):
        """A task that says nothing of itself: it is told by its class, and not by its address."""

        __repr__ = object.__repr__

    def about(bound: str = "none", task: Any = None, measures: tuple[str, ...] = ()) -> str:
        task = Classification() if task is None else task
        people = dataclasses.replace(population(), task=task, measures=measures)
        return Gloo(people, FedAvg(local=LOCAL), Options(bound=bound))._job_digest()

    jobs = [about(), about("refuse:5"), about(task=Softly()), about(measures=("macro_f1",))]
    assert len(set(jobs)) == 4
    assert about(task=Softly()) == jobs[2]


def test_a_rank_with_another_backbone_is_refused() -> None:
    """Frozen tensors are in no message, so nothing but this comparison tells who computes with others."""

    def engine(seed: int) -> Within:
        torch.manual_seed(seed)
        backbone = nn.Linear(4, 4).requires_grad_(False)
        torch.manual_seed(0)
        return Within(population(nn.Sequential(backbone, nn.Linear(4, CLASSES))), FedAvg(local=LOCAL))

    assert engine(1).population.models["net"].frozen.keys() == {"0.weight", "0.bias"}
    assert engine(1).runtime.initial("net").params.keys() == {"1.weight", "1.bias"}
    one, alike, other = engine(1), engine(1), engine(2)
    one.wires = InProcess([rank(alike)])
    one.open()
    assert one.ranks == [1]
    one.close()
    one.wires = InProcess([rank(alike), rank(other)])
    with pytest.raises(SettingError, match=r"two differ in .* networks, initial weights, encoders, gradients or bound"):
        one.open()


def test_a_length_that_is_only_claimed_is_not_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is received in pieces: a gibibyte is said, one piece comes, and then the connection ends."""
    gloo, took = object.__new__(over_gloo.GlooManager), list[int]()
    gloo._due = {3: threading.Semaphore(1)}

    def recv(rank: int, way: str, tensor: torch.Tensor) -> None:
        if tensor.dtype == torch.int64:
            tensor.fill_(1 << 30)
        elif len(took) == 2:
            raise EOFError("gone")
        else:
            took.append(len(tensor))

    monkeypatch.setattr(gloo, "_transfer", recv)
    monkeypatch.setattr(over_gloo, "PIECE", 1 << 16)
    tracemalloc.start()
    try:
        with pytest.raises(EOFError, match="gone"):
            gloo._receive(3)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert took == [1 << 16] * 2


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 35])
def test_pieces_make_the_message_that_was_sent(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gloo, sent = object.__new__(over_gloo.GlooManager), list[torch.Tensor]()
    gloo._due, message = {1: threading.Semaphore(1)}, bytes(range(length))
    monkeypatch.setattr(over_gloo, "PIECE", 10)

    def through(rank: int, way: str, tensor: torch.Tensor) -> None:
        if way == "send":
            sent.append(tensor.clone())
        else:
            tensor.copy_(sent.pop(0))

    monkeypatch.setattr(gloo, "_transfer", through)
    gloo._send(1, message)
    assert max(map(len, sent)) <= 10
    assert gloo._receive(1) == message
    assert not sent


def test_over_mpi_nobody_sends_more_than_is_waited_for() -> None:
    mpi = object.__new__(over_mpi.MPIManager)
    communication.ThreadedManager.__init__(mpi, 0, 3)
    mpi._pending = Counter({1: 1})
    for rank in (1, 2):
        mpi._add_rank(rank)
    assert [mpi._wants(rank) for rank in (1, 2)] == [True, False]
    mpi._deliver(1, bytearray(b"its answer"))
    assert not mpi._wants(1)
    device = object.__new__(over_mpi.MPIManager)
    communication.ThreadedManager.__init__(device, 1, 3)
    device._pending = Counter()
    device._add_rank(0)
    assert device._wants(0)
    device._deliver(0, bytearray(b"a request"))
    assert not device._wants(0)
