"""Tracing, compiling and mixed precision of the stack: really done, and with the same results."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.algorithms import FedAvg, FedNTD
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import EngineWarning
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from small import batches_of

SIZES = (9, 4, 13, 7, 2, 12, 11)
FEW = (8, 4, 8)  # two graphs: all three clients, then two of them and a finished one


def ragged_clients(
    dtype: torch.dtype = torch.float64, device: str = "cpu", sizes: tuple[int, ...] = SIZES
) -> Population:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(sum(sizes), 6)).astype(np.float32), rng.integers(0, 3, sum(sizes))
    partition = Partition(indptr=np.cumsum([0, *sizes]), indices=np.arange(len(y)), name="ragged", seed=None)
    federation = Federation(train=from_arrays(x, y, num_classes=3), partition=partition)
    model = Model(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3))
    )
    return Population(federation=federation, models={"net": model}, dtype=dtype, device=torch.device(device))


def three_rounds(kind: type[Engine], algorithm: Algorithm[Any, Any], people: Population, **more: Any) -> Any:
    engine = kind(people, algorithm, Options(**more))
    server = engine.init()
    for t in range(3):
        server = engine.round(server, range(people.num_clients), t)
    return server, engine


LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.1, momentum=0.9, weight_decay=1e-3))


def close(a: Any, b: Any, tolerance: float) -> None:
    for u, v in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(u, v, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [Loop, Stacked])
def test_a_traced_step_convolves_once(kind: type[Engine]) -> None:
    """What was tried before, two forwards on two empty images, is computed once and not in each step."""
    x, y = np.zeros((16, 1, 8, 8), np.float32), np.arange(16) % 3
    partition = Partition(indptr=np.array([0, 8, 16]), indices=np.arange(16), name="in order", seed=None)
    model = Model(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)))
    people = Population(Federation(train=from_arrays(x, y, num_classes=3), partition=partition), {"net": model})
    engine = kind(people, FedAvg(local=Local(epochs=1, batch_size=8)), Options(compilation="trace"))
    engine.round(engine.init(), range(2), 0)
    (program,) = engine.runtime.programs.values()
    found = [node for node in program.__self__.graph.nodes if node.target == torch.ops.aten.convolution.default]
    assert len(found) == 1


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAvg(local=LOCAL), FedNTD(local=LOCAL)])
def test_a_traced_stack_equals_the_loop(algorithm: Algorithm[Any, Any]) -> None:
    expected, _ = three_rounds(Loop, algorithm, ragged_clients())
    got, engine = three_rounds(Stacked, algorithm, ragged_clients(), compilation="trace")
    close(got, expected, 1e-9)
    programs = engine.runtime.programs
    assert programs
    assert all(isinstance(p.__self__, torch.fx.GraphModule) for p in programs.values())
    before = len(programs)
    engine.round(got, range(len(SIZES)), 3)
    assert len(engine.runtime.programs) == before, "a later round traced again"


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", [FedAvg(local=LOCAL), FedNTD(local=LOCAL)])
def test_a_traced_loop_equals_the_loop(algorithm: Algorithm[Any, Any]) -> None:
    """Short batches, teachers of several widths, BatchNorm and dropout among them."""
    expected, _ = three_rounds(Loop, algorithm, ragged_clients())
    got, engine = three_rounds(Loop, algorithm, ragged_clients(), compilation="trace")
    close(got, expected, 1e-9)
    assert engine.runtime.programs
    assert all(isinstance(p.__self__, torch.fx.GraphModule) for p in engine.runtime.programs.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Loop, Stacked])
def test_a_batch_larger_than_the_largest_client_is_all_of_its_examples(kind: type[Engine]) -> None:
    """And needs no more memory than that: no padding beyond the power of two that holds it."""
    whole = [FedAvg(local=Local(epochs=2, batch_size=n, optimiser=SGD(lr=0.1))) for n in (max(SIZES), 100_000)]
    expected, _ = three_rounds(Loop, whole[0], ragged_clients())
    got, engine = three_rounds(kind, whole[1], ragged_clients())
    close(got, expected, 1e-9)
    batches = batches_of(engine.population, range(len(SIZES)), whole[1].local)
    assert batches.order.shape == batches.mask.shape == (len(SIZES), 2, 16)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("kind", [Loop, Stacked])
def test_compiled_steps_equal_the_loop_and_were_compiled(kind: type[Engine]) -> None:
    """On a loop a layer's gradient is a matrix product, to which weight decay is added."""
    from torch._dynamo.utils import counters

    algorithm = FedAvg(local=LOCAL)
    expected, _ = three_rounds(Loop, algorithm, ragged_clients(sizes=FEW))
    counters.clear()
    got, engine = three_rounds(kind, algorithm, ragged_clients(sizes=FEW), compilation="compile")
    close(got, expected, 1e-9)
    assert counters["stats"]["unique_graphs"] == len(engine.runtime.programs) == (1 if kind is Loop else 2)
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Loop, Stacked])
def test_a_compiler_that_errs_is_noticed(kind: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that forgets a factor: the step is tried beside what it was made of, and not used."""

    def erring(step: Any, **options: Any) -> Any:
        def compiled(*args: torch.Tensor) -> Any:
            before, value = args[0].clone(), step(*args)
            args[0].add_(0.1 * (args[0] - before))
            return value

        return compiled

    monkeypatch.setattr(torch, "compile", erring)
    algorithm = FedAvg(local=LOCAL)
    expected, _ = three_rounds(kind, algorithm, ragged_clients(sizes=FEW), compilation="trace")
    with pytest.warns(EngineWarning, match=r"cannot be compiled \(ArithmeticError: the compiled step moves a tensor"):
        got, _ = three_rounds(kind, algorithm, ragged_clients(sizes=FEW), compilation="compile")
    close(got, expected, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Loop, Stacked])
def test_bf16_trains_close_to_float32_and_keeps_float32_weights(kind: type[Engine]) -> None:
    algorithm = FedAvg(local=LOCAL)
    full, _ = three_rounds(kind, algorithm, ragged_clients(torch.float32))
    half, _ = three_rounds(kind, algorithm, ragged_clients(torch.float32), bf16=True)
    assert all(p.dtype == torch.float32 for p in half["net"].params.values())
    close(half, full, 0.2)
    assert any(not torch.equal(a, b) for a, b in zip(tree.leaves(half), tree.leaves(full), strict=True))


@pytest.mark.slow
def test_chunks_do_not_change_what_is_computed() -> None:
    algorithm = FedAvg(local=LOCAL)
    whole, _ = three_rounds(Stacked, algorithm, ragged_clients())
    for chunk in (1, 3):
        parts, _ = three_rounds(Stacked, algorithm, ragged_clients(), chunk=chunk)
        close(parts, whole, 1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("kind", [Loop, Stacked])
def test_a_gpu_computes_the_same(kind: type[Engine]) -> None:
    expected, _ = three_rounds(Loop, FedAvg(local=LOCAL), ragged_clients())
    got, _ = three_rounds(kind, FedAvg(local=LOCAL), ragged_clients(device="cuda"))
    close(tree.cast(got, device="cpu"), expected, 1e-9)
