"""A long run needs few graphs, and a compiler that fails is no obstacle."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom import FedAvg, FedNTD, Local, RunSettings, run
from fedloom.coordinator.engine_choice import has_compiler
from fedloom.coordinator.history import History
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import EngineWarning, SettingError
from fedloom.core.fold import lockstep
from fedloom.core.fold.execution import Programs
from fedloom.core.optimiser import SGD
from fedloom.data import Federation, by_lists
from fedloom.engines.engine import Engine
from tiny import examples, mlp

LOCAL = Local(epochs=1, batch_size=10, optimiser=SGD(lr=0.05))


def ragged(clients: int = 30) -> Federation:
    """Clients of 10 to 300 examples: nearly every cohort of three has a longest client of its own."""
    sizes = np.linspace(10, 300, clients).astype(int)
    ends = np.cumsum([0, *sizes])
    return Federation(examples(int(ends[-1])), by_lists([range(a, b) for a, b in pairwise(ends)]))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Programs]:
    """The programs of every engine that is made."""
    seen: list[Programs] = []
    plain = Engine.__init__

    def noted(self: Any, *args: Any, **more: Any) -> None:
        plain(self, *args, **more)
        seen.append(self.runtime.programs)

    monkeypatch.setattr(Engine, "__init__", noted)
    return seen


def settings(**more: Any) -> RunSettings:
    return RunSettings(**{"rounds": 24, "cohort_size": 3, "engine": "stacked", "eval_every": 24, **more})


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAvg(local=LOCAL), FedNTD(local=LOCAL)])
def test_cohorts_with_other_longest_clients_share_their_graphs(
    algorithm: Algorithm[Any, Any], kept: list[Programs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code may be entered with the layout it was made for and no other, or it is made again."""
    compiled: list[int] = []

    def compiler(graph: Any, **_: Any) -> Any:
        number, layouts = len(compiled), set()
        compiled.append(0)

        def program(*args: torch.Tensor) -> Any:
            layouts.add(tuple((a.shape, a.stride(), a.dtype) for a in args))
            compiled[number] = len(layouts)
            return graph(*args)

        return program

    monkeypatch.setattr(torch, "compile", compiler)
    found = run(algorithm, ragged(), mlp, settings(compilation="compile"))
    assert len({max(len(ragged().partition.rows(k)) for k in m["clients"]) for m in found.metrics[1:]}) >= 15
    assert set(compiled) == {1}
    # K = 1, 2 or 3 of a stack with whole batches or not, two of three done with or without a masked client
    assert len(compiled) <= 8
    assert all(len(p) <= 20 for p in kept)


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_a_compiled_run_of_ragged_cohorts_ends(kept: list[Programs]) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    found = run(FedAvg(local=LOCAL), ragged(), mlp, settings(compilation="compile", cohort_size=2))
    assert len(found.metrics) == 25
    assert counters["stats"]["unique_graphs"] == len(kept[-1]) <= 4
    plain = run(FedAvg(local=LOCAL), ragged(), mlp, settings(compilation="none", cohort_size=2))
    assert found.metrics[-1]["train_loss"] == pytest.approx(plain.metrics[-1]["train_loss"], rel=1e-4)


@pytest.mark.slow
def test_a_compiler_that_fails_leaves_the_trace_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[None] = []

    def broken(graph: Any, **_: Any) -> Any:
        def program(*args: Any) -> Any:
            calls.append(None)
            raise RuntimeError("no compiler here\nand more")

        return program

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.warns(EngineWarning, match=r"cannot be compiled \(RuntimeError: no compiler here\): it is traced") as w:
        got = run(FedAvg(local=LOCAL), ragged(6), mlp, settings(rounds=3, compilation="compile"), directory=tmp_path)
    assert len(w) == len(calls) == 1
    traced = run(FedAvg(local=LOCAL), ragged(6), mlp, settings(rounds=3, compilation="trace"))
    assert got.metrics == traced.metrics
    assert got.manifest["fixed"]["compilation"] == "compile"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_step_that_cannot_be_traced_is_computed_as_written(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Any, *args: Any) -> Any:
        raise RuntimeError("no tracing here")

    monkeypatch.setattr(lockstep._Lockstep, "_trace", refuses)
    some = settings(rounds=2, engine=engine)
    with pytest.warns(EngineWarning, match=r"cannot be traced \(RuntimeError: no tracing here\): it is computed as"):
        got = run(FedAvg(local=LOCAL), ragged(6), mlp, dataclasses.replace(some, compilation="trace"))
    plain = run(FedAvg(local=LOCAL), ragged(6), mlp, dataclasses.replace(some, compilation="none"))
    assert [m["train_loss"] for m in got.metrics[1:]] == pytest.approx(
        [m["train_loss"] for m in plain.metrics[1:]], rel=1e-5
    )


@pytest.mark.slow
def test_the_loop_traces_whole_batches_alone(kept: list[Programs]) -> None:
    run(FedAvg(local=LOCAL), ragged(), mlp, settings(rounds=6, engine="loop", compilation="trace"))
    assert len(kept[-1]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["none", "trace"])
def test_a_run_goes_on_in_the_form_it_began_with(form: Any, tmp_path: Path) -> None:
    """Nobody may ask for another, nor leave the choice open."""
    one, two = settings(rounds=1, compilation=form, engine="loop"), settings(rounds=3, engine="loop")
    job = FedAvg(local=LOCAL), ragged(6), mlp
    run(*job, one, directory=tmp_path)
    for other in ("compile", "auto"):
        asked = dataclasses.replace(two, compilation=other)
        with pytest.raises(SettingError, match=f'run.compilation was "{form}" and is "{other}"'):
            run(*job, asked, directory=tmp_path, resume=True)
    same = dataclasses.replace(two, compilation=form)
    got = run(*job, same, directory=tmp_path, resume=True)
    assert got.metrics[1:] == run(*job, same).metrics[1:]
    manifest = History.read(tmp_path).manifest
    assert manifest["run"]["compilation"] == manifest["fixed"]["compilation"] == form


@pytest.mark.slow
def test_auto_is_resolved_once_and_recorded(tmp_path: Path) -> None:
    job = FedAvg(local=LOCAL), ragged(6), mlp
    for rounds, resume in ((2, False), (800, True)):  # long enough to be traced, had it begun so
        stop = settings(rounds=rounds, monitor="train_loss", target=1e9)
        manifest = run(*job, stop, directory=tmp_path / "short", resume=resume).manifest
        assert manifest["run"]["compilation"] == "auto"
        assert manifest["fixed"]["compilation"] == "none"
    fresh = run(*job, stop, directory=tmp_path / "long")
    assert fresh.manifest["fixed"]["compilation"] == "trace"
