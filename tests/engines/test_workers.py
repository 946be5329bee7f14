"""Clients in processes of their own: the bits of the loop, whatever happens to a process."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import RunSettings, run
from fedloom.algorithms import FedAvg, FedNTD, KTpFL, PFedSD, Scaffold
from fedloom.core.errors import ClientError, EngineWarning, SettingError, line_of
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.engines import child as child_module
from fedloom.engines.child import Child
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.workers import Workers
from fedloom.testing.compare import same
from fedloom.testing.small_networks import MLP, Convolutional
from fedloom.testing.subject import Subject
from tiny import CLASSES, federation, mlp

MODELS = {"conv": Model(Convolutional, name="conv"), "mlp": Model(MLP, name="mlp")}
LOCAL = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class One(Workers):
    """As on a machine with one core."""

    made: ClassVar[list[Child]] = []

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.options = dataclasses.replace(self.options, workers=1)


class Two(Workers):
    """As on a machine with two cores; notes its processes."""

    made: ClassVar[list[Child]] = []

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.options = dataclasses.replace(self.options, workers=2)

    def _fork(self) -> int:
        number = super()._fork()
        self.made.append(self.children[number])
        return number


@pytest.mark.some(1)
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("algorithm", [FedNTD, Scaffold, PFedSD, KTpFL])
def test_the_bits_of_the_loop_on_one_thread(algorithm: Any, compilation: Any) -> None:
    subject = Subject.of(algorithm, MODELS)
    want = subject.run(Loop, compilation=compilation)
    for kind in (Two, One):
        got = subject.run(kind, compilation=compilation, with_evaluation=True)
        what = f"{kind.__name__} must compute what the loop does"
        same((want.servers, want.states, want.personal), (got.servers, got.states, got.personal), what)
        assert (want.right, want.engine.traffic) == (got.right, got.engine.traffic)
        forked = list(kind.made)
        assert len(forked) == (2 if kind is Two else 0)
        assert not any(child.process.is_alive() for child in forked)  # the engine was closed
        kind.made.clear()


@pytest.mark.slow
def test_clients_may_be_numbers_of_any_kind() -> None:
    engine, loop = (kind(population(mlp), FedAvg(local=LOCAL)) for kind in (Two, Loop))
    same(loop.round(loop.init(), range(4), 0), engine.round(engine.init(), np.arange(4), 0), "NumPy's as well")
    assert engine.evaluate_counts(engine.init(), np.arange(4), 0) == loop.evaluate_counts(loop.init(), range(4), 0)
    engine.close()


@pytest.mark.slow
def test_a_message_may_be_larger_than_the_memory_that_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "SHARED", 4096)
    engine, loop = (kind(population(lambda: mlp(400)), PFedSD(local=LOCAL)) for kind in (Two, Loop))
    same(loop.round(loop.init(), range(4), 0), engine.round(engine.init(), range(4), 0), "through the pipe itself")
    engine.close()


def test_threads_of_the_run_do_not_reach_the_clients() -> None:
    subject = Subject.of(FedAvg, {"conv": MODELS["conv"]})
    want = subject.run(One)
    torch.set_num_threads(2)
    got = subject.run(One)
    assert torch.get_num_threads() == 2
    same(want.servers, got.servers, "one thread, whatever the run has")


class Deadly(nn.Module):
    """Kills the process that computes it, so many times; a file counts them. Where there is no file, it computes."""

    def __init__(self, deaths: Path, most: int) -> None:
        super().__init__()
        self.net, self.deaths, self.most, self.owner = mlp(), deaths, most, os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.owner and self.deaths.exists():
            count = self.deaths.stat().st_size
            if count < self.most:
                self.deaths.write_bytes(b"x" * (count + 1))
                os.kill(os.getpid(), signal.SIGKILL)
        return self.net(x)


def population(model: Any) -> Population:
    return Population(federation(), {"net": Model(model, name="net")})


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_client_asked_again(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    people = population(lambda: Deadly(deaths, most=2))
    want = Loop(people, PFedSD(local=LOCAL))
    clean = want.round(want.init(), range(6), 0)
    deaths.touch()
    got = Two(people, PFedSD(local=LOCAL))
    with pytest.warns(EngineWarning, match=r"is asked again: its process died \(killed by SIGKILL; lower workers"):
        after = got.round(got.init(), range(6), 0)
    same(clean, after, "a lost worker loses nothing")
    same(dict(want.states), dict(got.states), "nor any state")
    assert deaths.stat().st_size == 2
    assert len(got.children) == 2
    assert got.traffic == want.traffic
    got.close()


class Sleepy(nn.Module):
    """Takes its time in a process of its own, as long as a file is there."""

    def __init__(self, asleep: Path) -> None:
        super().__init__()
        self.net, self.asleep, self.owner = mlp(), asleep, os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.owner and self.asleep.exists():
            time.sleep(60)
        return self.net(x)


@pytest.mark.slow
def test_who_is_late_is_left_out(tmp_path: Path) -> None:
    asleep = tmp_path / "asleep"
    people = population(lambda: Sleepy(asleep))
    engine, loop = Two(people, PFedSD(local=LOCAL), Options(deadline=0.3)), Loop(people, PFedSD(local=LOCAL))
    before = engine.init()
    asleep.touch()
    begun = time.monotonic()
    same(before, engine.round(before, (0, 2, 5), 0), "nobody answered, the server moved")
    assert time.monotonic() - begun < 50, "the round waited for those that it has no use for"
    assert [(f.client, f.reason) for f in engine.traffic.failed] == [(k, "no answer within 0.3 s") for k in (0, 2, 5)]
    assert not engine.children
    assert not dict(engine.states)
    asleep.unlink()
    engine.options = Options()
    same(loop.round(before, (0, 2, 5), 1), engine.round(before, (0, 2, 5), 1), "the next round has what it should")
    engine.close()


@pytest.mark.slow
def test_a_client_that_kills_every_worker_is_named(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    people = population(lambda: Deadly(deaths, most=100))
    deaths.touch()
    engine = Two(people, FedAvg(local=LOCAL))
    asked = r"asked 3 times in vain: its process died \(killed by SIGKILL; lower workers if memory is short\)"
    with pytest.warns(EngineWarning, match="is asked again"), pytest.raises(ClientError, match=asked):
        engine.round(engine.init(), range(6), 0)
    assert not [child for child in engine.children.values() if not child.process.is_alive()]
    engine.close()


@pytest.mark.slow
def test_processes_killed_between_rounds_are_replaced() -> None:
    engine, loop = (kind(population(mlp), FedAvg(local=LOCAL)) for kind in (Two, Loop))
    first = engine.round(engine.init(), range(6), 0)
    for child in engine.children.values():
        child.process.kill()
        child.process.join()
    with pytest.warns(EngineWarning, match="is asked again"):
        second = engine.round(first, range(6), 1)
    same(loop.round(first, range(6), 1), second, "as if nothing had happened")
    engine.close()


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.owner = mlp(), os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.owner:
            raise RuntimeError("no such luck")
        return self.net(x)


def test_an_error_in_a_worker_names_the_client_and_shows_where() -> None:
    engine = Two(population(Broken), FedAvg(local=LOCAL))
    with pytest.raises(ClientError, match=r"client \d, round 1, batch 0: RuntimeError: no such luck") as found:
        engine.round(engine.init(), range(6), 0)
    assert "in forward" in found.value.__notes__[0]
    assert re.fullmatch(rf"{re.escape(__file__)}, line \d+, in forward", line_of(found.value))
    assert not [child for child in engine.children.values() if child.process.exitcode]
    engine.close()


class Warns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.owner = mlp(), os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.owner:
            warnings.warn("it is late", EngineWarning, stacklevel=1)
        return self.net(x)


@pytest.mark.slow
def test_warnings_of_a_worker_are_heard() -> None:
    engine = Two(population(Warns), FedAvg(local=LOCAL))
    with pytest.warns(EngineWarning, match="it is late"):
        engine.round(engine.init(), range(6), 0)
    engine.close()


@pytest.mark.slow
def test_a_run_ends_its_processes_and_resumes_with_any_number_of_them(tmp_path: Path) -> None:
    conv = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(4, CLASSES))
    settings = {"rounds": 4, "cohort_size": 4, "threads": 1}
    whole = run(PFedSD(local=LOCAL), federation(), conv, RunSettings(**settings, workers=2))
    assert (whole.engine, whole.engine_reason) == ("workers", "convolutions on a CPU")
    first = RunSettings(**{**settings, "rounds": 2}, workers=2)
    run(PFedSD(local=LOCAL), federation(), conv, first, directory=tmp_path)
    again = RunSettings(**settings, workers=1)
    resumed = run(PFedSD(local=LOCAL), federation(), conv, again, directory=tmp_path, resume=True)
    assert resumed.metrics == whole.metrics
    loop = run(PFedSD(local=LOCAL), federation(), conv, RunSettings(**settings, engine="loop"))
    assert loop.metrics == whole.metrics


@pytest.mark.parametrize("workers", [0, -1])
def test_a_number_of_workers_is_at_least_one(workers: int) -> None:
    with pytest.raises(SettingError, match=rf"workers must be .*1.* got {workers}"):
        run(FedAvg(local=LOCAL), federation(), mlp, RunSettings(rounds=1, cohort_size=2, workers=workers))


def test_there_are_no_more_processes_than_clients_and_none_for_one_client() -> None:
    run = Workers(Population(federation(), {"mlp": Model(mlp)}), FedAvg(local=LOCAL), Options(workers=3))
    killed: list[int] = []

    def fork() -> int:
        number = next(run._numbers_made)
        process = SimpleNamespace(kill=lambda: killed.append(number))
        run.children[number] = SimpleNamespace(process=process, close=lambda: None, exit_reason="gone")  # type: ignore[assignment]
        return number

    run._fork = fork  # type: ignore[method-assign]
    assert run.idle_processes(1) is None
    assert (run.idle_processes(2), run.idle_processes(9), run.idle_processes(2)) == ([0, 1], [0, 1, 2], [0, 1])
    run._newest_broadcast.update({0: 5, 1: 5})
    assert run.replace_process(0) == ("gone; lower workers if memory is short", [3])
    assert (run._newest_broadcast, [*run.children], killed) == ({1: 5}, [1, 2, 3], [])
    assert run.abandon(1) is False
    assert (run._newest_broadcast, killed) == ({}, [1])
    run.close()
    assert not run.children
