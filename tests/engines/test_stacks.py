"""Stacks in processes: the bits of `stacked` with their chunk, however many processes there are."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedloom import RunSettings, run
from fedloom.algorithms import FedAvg, PFedSD
from fedloom.core.errors import EngineWarning, SettingError, StackingError
from fedloom.core.fold.execution import threads
from fedloom.core.model import Model
from fedloom.engines.child import Child
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options, best_chunk
from fedloom.engines.loop import Loop
from fedloom.engines.message import Call
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.engines.stacks import Stacks
from fedloom.testing.compare import same
from fedloom.testing.small_networks import MLP
from fedloom.testing.subject import Subject
from tiny import LOCAL, federation, mlp

MODELS = {"wide": Model(lambda: MLP(16), name="wide"), "mlp": Model(MLP, name="mlp")}


def of(model: Any, kind: type[Engine] = Stacks, algorithm: type[Any] = PFedSD, **options: Any) -> Engine:
    population = Population(federation(), {"net": Model(model, name="net")})
    return kind(population, algorithm(local=LOCAL), Options(**options))


@pytest.mark.parametrize("algorithm", ["pfedsd", "kt_pfl", "scaffold"])
def test_the_bits_of_a_stack_with_the_same_chunk(algorithm: str) -> None:
    from fedloom.algorithms import ALGORITHMS

    subject = Subject.of(ALGORITHMS[algorithm], MODELS)
    with threads(1):
        want = subject.run(Stacked, chunk=2)
    for workers in (1, 2):
        kind = type(
            "Some", (Stacks,), {"idle_processes": lambda self, n, w=workers: Stacks.idle_processes(self, min(n, w))}
        )
        got = subject.run(kind, chunk=2, with_evaluation=True)
        same(
            (want.servers, want.states, want.personal), (got.servers, got.states, got.personal), f"{workers} processes"
        )
        assert (want.right, want.engine.traffic) == (got.right, got.engine.traffic)


def test_the_chunk_depends_on_the_network_alone() -> None:
    assert [best_chunk(n) for n in (0, 100, 7850, 159_010, 10**8)] == [400_000, 4000, 50, 8, 8]
    one, two = (of(mlp, workers=workers) for workers in (1, 2))
    assert one.fixed() == two.fixed()
    assert one.fixed()["chunks"]["net"] == best_chunk(one.population.models["net"].num_params)
    assert of(lambda: mlp(20_000), chunk=9).fixed()["chunks"] == {"net": 9}
    assert of(mlp, chunks={"net": 4}).fixed()["chunks"] == {"net": 4}
    assert of(lambda: mlp(20_000), chunks=None).fixed()["chunks"] == {"net": 8}


class Deadly(nn.Module):
    """Kills the first other process that computes it, where the file is there."""

    def __init__(self, alive: Path) -> None:
        super().__init__()
        self.net, self.alive, self.owner = mlp(), alive, os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.owner:
            with contextlib.suppress(FileNotFoundError):
                self.alive.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.net(x)


def test_a_stack_whose_process_dies_is_computed_again(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    with threads(1):
        want = of(lambda: Deadly(alive), Stacked, chunk=2)
        clean = want.round(want.init(), range(6), 0)
        got = of(lambda: Deadly(alive), chunk=2, workers=2)
        alive.touch()
        with pytest.warns(EngineWarning, match=r"clients \d, \d are asked again: its process died \(killed by SIGKILL"):
            after = got.round(got.init(), range(6), 0)
        got.close()
    same((clean, dict(want.states)), (after, dict(got.states)), "a lost process loses nothing")


def test_sums_by_processes_need_clients_one_by_one() -> None:
    with pytest.raises(SettingError, match="partial_sums needs clients that are computed one by one: leave out"):
        of(mlp, algorithm=FedAvg, partial_sums=2)


def test_several_clients_are_never_computed_as_the_first_of_them() -> None:
    engine = of(mlp, Loop, FedAvg)
    call = Call("train", tuple(engine.init().values()), 0, 0, 0.1)
    with pytest.raises(StackingError, match=r"clients \[0, 1\] were asked at once where each is computed alone"):
        engine.ask(call, [0, 1], lambda ids: ())


def test_a_run_says_so_and_goes_on_with_its_chunk(tmp_path: Path) -> None:
    def runs(rounds: int, engine: Any = "stacks", **more: Any) -> Any:
        settings = RunSettings(rounds=rounds, cohort_size=6, engine=engine, chunk=2, workers=2, threads=1)
        return run(FedAvg(local=LOCAL), federation(), mlp, settings, **more)

    whole = runs(3)
    assert (whole.engine, whole.engine_reason) == ("stacks", "asked for")
    runs(2, directory=tmp_path)
    assert runs(3, directory=tmp_path, resume=True).metrics == whole.metrics


class Opens:
    """Holds a file, in a circle that only the collector of garbage ends."""

    def __init__(self, path: Path) -> None:
        self.file, self.me = path.open("w", encoding="utf-8"), self


def test_garbage_of_the_parent_closes_no_file_of_a_child(tmp_path: Path) -> None:
    import gc

    gc.disable()
    try:
        for i in range(3):
            Opens(tmp_path / str(i))

        def answer(message: memoryview) -> bytes:
            files = [os.open(tmp_path / f"own {i}", os.O_CREAT | os.O_WRONLY) for i in range(200)]
            gc.collect()
            return b"%d" % sum(os.write(file, b"whole") for file in files)

        child = Child(answer)
        child.send(b"go")
        assert bytes(child.receive()) == b"1000"
        child.close()
    finally:
        gc.enable()
        with pytest.warns(ResourceWarning):
            gc.collect()
