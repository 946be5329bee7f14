"""What servers make of given uploads, and which tensors travel: numbers of several authors' code, by whole rounds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from steered import LEAP, Steered, SteeredTiny, clients_at, flat, rows
from torch import Tensor, nn

from fedloom.algorithms import FedAvg, FedPer, FedProx, LGFedAvg, PFedSD
from fedloom.core import tree
from fedloom.core.averaging import Kept
from fedloom.core.client import Client, on_client
from fedloom.core.local_training import Local
from fedloom.core.losses import distillation
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Maybe, Weighted, Weights
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.tasks import SVM
from fedloom.testing.messages import Messages
from small import assert_params, clients_of, weights_at

ENGINES = [Loop, Stacked]
EXACT = {"rtol": 0, "atol": 1e-12}


# ---- means over clients


@pytest.mark.parametrize("engine", ENGINES)
def test_average_of_pfedsd(engine: Any) -> None:
    """Clients 1 and 3 answer; that one has more examples does not matter, nor what client 2 holds."""
    g = golden("pfedsd_apfl/pfedsd_aggregate_uniform")
    start, ends = weights_at(g, "master_before."), [weights_at(g, f"client{k}.") for k in (1, 2, 3)]
    population = clients_at(SteeredTiny, [rows(start, end, n) for end, n in zip(ends, (5, 4, 9), strict=True)])
    run = engine(population, PFedSD(local=LEAP))
    server = run.round({"steered": start}, (0, 2), 0)["steered"]
    assert_params(server, weights_at(g, "avg_clients_1_3."), **EXACT)
    for k, end in zip((0, 2), (ends[0], ends[2]), strict=True):  # the next teachers
        assert_params(run.states[k].v.value, end, **EXACT)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["uniform", "weighted"])
def test_average_of_fedavg(kind: str, engine: Any) -> None:
    g = golden("pfedsd_apfl/fedavg_aggregate")
    start = tree.zeros_like(weights_at(g, "client0."))
    ends = [weights_at(g, f"client{k}.") for k in range(3)]
    population = clients_at(SteeredTiny, [rows(start, w, int(n)) for w, n in zip(ends, g["n_samples"], strict=True)])
    settings = {"chunk": 2} if engine is Stacked else {}
    algorithm = FedAvg(aggregation="uniform" if kind == "uniform" else "samples", local=LEAP)
    server = engine(population, algorithm, Options(**settings)).round({"steered": start}, (0, 1, 2), 0)["steered"]
    assert_params(server, weights_at(g, f"avg_{kind}."), **EXACT)


class SteeredDense(Steered):
    """The tensors of DENSE's tiny network (golden/ktpfl_dense/README.md); a batch of two sets running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm1d(4, momentum=1.0)
        self.conv2, self.bn2 = nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm1d(5, momentum=1.0)
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        seen, gradient = x[:, :9], x[:, 9:]
        moved = self.bn1(seen[:, :4]).sum() + self.bn2(seen[:, 4:]).sum()
        return super().forward(gradient) + 0.0 * moved


@pytest.mark.parametrize("engine", ENGINES)
def test_average_of_dense_takes_running_statistics_along(engine: Any) -> None:
    """One-shot FedAvg. Theirs averages the counters of batches too, which fedloom leaves at the server's."""
    g = golden("ktpfl_dense/dense_fedavg")
    ends, want = [weights_at(g, f"client{k}/") for k in range(3)], weights_at(g, "avg/")
    start, data = tree.zeros_like(ends[0]), []
    for end in ends:
        mean, var = (torch.cat([end.buffers[f"bn{i}.running_{s}"] for i in (1, 2)]) for s in ("mean", "var"))
        spread = (var / 2).sqrt()  # of two rows, whose unbiased variance is 2 spread^2
        seen = torch.stack([mean + spread, mean - spread])
        data.append(torch.cat([seen, rows(start, end, 2)], 1))
    algorithm = FedAvg(aggregation="uniform", local=LEAP)
    server = engine(clients_at(SteeredDense, data), algorithm).round({"steered": start}, (0, 1, 2), 0)["steered"]
    assert_params(server, want, rtol=1e-5, atol=1e-6)
    for name, value in want.buffers.items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_allclose(server.buffers[name], value, rtol=1e-5, atol=1e-6)


# ---- terms and tasks


@pytest.mark.parametrize("engine", ENGINES)
def test_proximal_term(engine: Any) -> None:
    """The first step leads from the model received to w; the second, on zeros, sees the proximal term alone."""
    g = golden("pfedsd_apfl/fedprox_term")
    start, w = weights_at(g, "w_global."), weights_at(g, "w.")
    way = rows(start, w)
    population = clients_at(SteeredTiny, [way, torch.cat([way, torch.zeros_like(way)])])
    local = dataclasses.replace(LEAP, batch_size=1)
    run = engine(population, FedProx(mu=float(g["mu"]), local=local, aggregation="uniform"))
    sent: dict[int, Weights] = {}
    run.watch = lambda exchange: sent.update({exchange.client: exchange.upload.value})
    run.round({"steered": start}, (0, 1), 0)
    assert_params(sent[0], w, **EXACT)
    assert_params(Weights(params=w.params - sent[1].params), weights_at(g, "grad."), **EXACT)
    first = float((way * flat(start.params)).sum())  # the logit before the first step
    assert 2 * run.traffic.losses[1] - first == pytest.approx(float(g["prox"]), abs=1e-12)


class Table(nn.Module):
    """Logits that are parameters, one row for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(5, 7))

    def forward(self, x: Tensor) -> Tensor:
        return self.rows[x[:, 0].long()]


class Nothing:
    """A task without a loss."""

    def loss(self, logits: Tensor, batch: Any) -> Tensor:
        return batch.mean(0.0 * logits[:, 0])

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return y == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("T", [1, 3, 20])
def test_distillation_of_dense(T: int, engine: Any) -> None:
    """T^2 KL(teacher || student), mean over the batch, as pFedSD's term; one step at rate 1 moves by the gradient."""
    g = golden("ktpfl_dense/dense_kd")
    student, teacher = (Weights(params={"rows": torch.from_numpy(g[f"{n}_logits"])}) for n in ("student", "teacher"))
    population = clients_of([(np.arange(5.0)[:, None], np.zeros(5, np.int64))], model=Model(Table, name="table"))
    population = dataclasses.replace(population, task=Nothing(), dtype=torch.float32)
    run = engine(population, PFedSD(lam=1.0, T=float(T), local=LEAP))
    run.states[0] = Kept(inner=Weights(params={}), v=Maybe.some(teacher), made=torch.tensor(0))
    server = run.round({"table": student}, (0,), 0)["table"]
    moved = student.params["rows"] - server.params["rows"]
    np.testing.assert_allclose(moved, g[f"grad_student/T{T}"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.traffic.losses[0], g[f"loss/T{T}"], rtol=1e-5)
    each = distillation(student.params["rows"], teacher.params["rows"], float(T))
    np.testing.assert_allclose(each, g[f"kl_none_sum1/T{T}"], rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", ["sum", "mean"])
def test_svm_of_vehicle(engine: Any, form: str) -> None:
    """fair_flearn's objective is a sum over examples, Ditto's a mean; neither regularises the bias."""
    g = golden("pfedsd_apfl/vehicle_svm")
    y, w = (g["y"] > 0).astype(np.int64), torch.from_numpy(g["w"])
    population = clients_of([(g["x"], y)], model=Model(lambda: nn.Linear(100, 1), name="svm"), num_classes=2)
    task = {"sum": SVM(), "mean": SVM(reduction="mean", ridge=0.01)}[form]
    run = engine(dataclasses.replace(population, task=task), FedAvg(local=LEAP))
    start = Weights(params={"weight": w[None], "bias": torch.from_numpy(g["b"])[None]})
    server = run.round({"svm": start}, (0,), 0)["svm"]
    slope = start.params - server.params
    np.testing.assert_allclose(run.traffic.losses[0], g[f"loss_{form}"], **EXACT)
    np.testing.assert_allclose(slope["weight"][0], g[f"grad_w_{form}"], **EXACT)
    np.testing.assert_allclose(slope["bias"][0], g[f"grad_b_{form}"], **EXACT)


# ---- what is shared


class Split(nn.Module):
    """PFLlib's division of a network: `base` and `head`."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential()
        self.base.add_module("fc1", nn.Linear(6, 5))
        self.head = nn.Linear(5, 4)


class SteeredSplit(Steered, Split):
    pass


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", [*ENGINES, Messages])
@pytest.mark.parametrize(
    ("name", "shared", "algorithm"),
    [
        ("fedper", "base.*", FedPer(personal_layers="last:1", local=LEAP)),
        ("fedper", "base.*", FedPer(personal_layers="head.*", local=LEAP)),
        ("fedper", "base.*", FedAvg(shared="base.*", local=LEAP)),
        ("lgfedavg", "head.*", LGFedAvg(global_modules="last:1", aggregation="samples", local=LEAP)),
        ("lgfedavg", "head.*", LGFedAvg(global_modules="head.*", aggregation="samples", local=LEAP)),
    ],
)
def test_shared_part_of_a_split_network(name: str, shared: str, algorithm: Any, engine: Any) -> None:
    g = golden(f"pfedsd_apfl/split_{name}_pfllib")
    ends = [weights_at(g, f"client{k}_before.") for k in range(3)]
    start = tree.zeros_like(ends[0])
    population = clients_at(SteeredSplit, [rows(start, w, int(n)) for w, n in zip(ends, g["n_samples"], strict=True)])
    run = engine(population, algorithm)
    for k in range(3):
        run.states[k] = run.algorithm.init_client(start, population.models["steered"], 0)
    server = run.round({"steered": start}, (0, 1, 2), 0)
    part = weights_at(g, "global_part.")
    travels = {n: t for n, t in server["steered"].params.items() if n.startswith(shared[:-1])}
    assert_params(Weights(params={n.removeprefix(shared[:-1]): t for n, t in travels.items()}), part, **EXACT)
    for k, personal in run.personal(server, (0, 1, 2), 0).items():
        assert_params(personal, weights_at(g, f"client{k}_after."), **EXACT)
    assert run.traffic.up[0] == 8 * sum(t.numel() for t in part.params.values())


@dataclass(frozen=True, kw_only=True)
class Apart(LGFedAvg):
    """Clients whose shared tensors differ before the round, as they do in the golden file and never in a run."""

    at: tuple[Weights, ...] = dataclasses.field(default=(), hash=False)  # by client

    def round(self, server: Weights, cohort: Any) -> Weights:
        each = tree.stack([self.down(self.at[int(k)]) for k in cohort.ids])
        return server.merge(cohort.reduce(self.from_each, scatter=(each,)).mean)

    @on_client
    def from_each(self, client: Client[Maybe[Weights]], head: Weights) -> tuple[Maybe[Weights], Weighted[Weights]]:
        return self.local_update(client, head)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [*ENGINES, Messages])
def test_round_of_lg_fedavg(engine: Any) -> None:
    """Clients 1 and 0 train, the mean of their heads goes to all three."""
    g = golden("pfedsd_apfl/lgfedavg_head_global")
    before = [weights_at(g, f"client{k}_before.") for k in range(3)]
    optimiser = SGD(lr=float(g["lr"]), momentum=float(g["momentum"]))
    local = Local(epochs=int(g["local_epochs"]), batch_size=4, optimiser=optimiser)
    assert set(g["global_keys"]) == {"fc2.weight", "fc2.bias"}
    algorithm = Apart(at=tuple(before), global_modules="fc2.*", local=local)
    run = engine(clients_of(list(zip(g["x"], g["y"], strict=True))), algorithm)
    for k in range(3):
        own = {n: t for n, t in before[k].params.items() if n.startswith("fc1")}
        run.states[k] = Maybe.some(Weights(params=own))
    server = run.round({"tiny": before[0]}, [int(k) for k in g["selected"]], 0)
    for k, personal in run.personal(server, range(3), 0).items():
        assert_params(personal, weights_at(g, f"client{k}_after."))


def mlp() -> nn.Module:
    """LG-FedAvg's network for MNIST, without its activations."""
    widths = {
        "input": (784, 512),
        "hidden1": (512, 256),
        "hidden2": (256, 256),
        "hidden3": (256, 128),
        "out": (128, 10),
    }
    network = nn.Sequential(nn.Flatten())
    for name, (inputs, outputs) in widths.items():
        network.add_module(f"layer_{name}", nn.Linear(inputs, outputs))
    return network


def cnn() -> nn.Module:
    """LG-FedAvg's network for CIFAR-10, without its activations and pooling."""
    network = nn.Sequential()
    network.add_module("conv1", nn.Conv2d(3, 6, 5))
    network.add_module("conv2", nn.Conv2d(6, 16, 5))
    network.add_module("pool", nn.Sequential(nn.AdaptiveAvgPool2d(5), nn.Flatten()))
    for i, (inputs, outputs) in enumerate([(400, 120), (120, 100), (100, 10)], 1):
        network.add_module(f"fc{i}", nn.Linear(inputs, outputs))
    return network


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [*ENGINES, Messages])
@pytest.mark.parametrize(
    ("case", "build", "shape", "shared"),
    [
        ("cifar_cnn", cnn, (3, 32, 32), "conv*"),
        ("mnist_mlp", mlp, (1, 28, 28), "* !layer_input.* !layer_hidden1.*"),
        ("mnist_mlp", mlp, (1, 28, 28), "last:3"),
    ],
)
def test_tensors_that_lg_fedavg_shares(case: str, build: Any, shape: tuple[int, ...], shared: str, engine: Any) -> None:
    g = golden("pfedsd_apfl/lgfedavg_official_key_choice")
    model = Model(build, name=case)
    assert model.num_params == int(g[f"{case}_n_total"])
    local = Local(epochs=1, batch_size=2, optimiser=SGD(lr=0.1))
    population = clients_of([(np.zeros((2, *shape)), np.zeros(2, np.int64))] * 2, model=model, dtype=torch.float32)
    run = engine(population, LGFedAvg(global_modules=shared, local=local))
    sent: dict[int, Weights] = {}
    run.watch = lambda exchange: sent.update({exchange.client: exchange.upload.value})
    run.round(run.init(), (0, 1), 0)
    assert set(sent[0].params) == set(g[f"{case}_official_global_keys"])
    assert run.traffic.down[0] == run.traffic.up[0] == 4 * int(g[f"{case}_n_global"])
