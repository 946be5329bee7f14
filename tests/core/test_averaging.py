"""What is averaged, what stays with the server, and what stays with a client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.algorithms import FedAvg, FedPer, PFedSD
from fedloom.core import tree
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from small import clients_of

ENGINES = [Loop, Stacked]
SIZES = (4, 12, 8)
MODEL = Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)), name="net")
LOCAL = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))
MOVING = ("1.running_mean", "1.running_var")


class Run:
    """Two rounds of three clients of unequal sizes; each client has data around a mean of its own."""

    def __init__(self, algorithm: Any, engine: Any) -> None:
        rng = np.random.default_rng(0)
        data = [(3.0 * k + rng.normal(size=(n, 6)), rng.integers(4, size=n)) for k, n in enumerate(SIZES)]
        self.engine = engine(clients_of(data, model=MODEL), algorithm)
        self.engine.watch = lambda exchange: self.ends[-1].update({exchange.client: exchange.trained})
        self.servers = [self.engine.init()["net"]]
        self.ends: list[dict[int, Weights]] = []  # by round: what each client's training ended with
        self.bytes: list[tuple[int, int]] = []  # by round: down and up, of client 0
        for t in range(2):
            self.ends.append({})
            self.servers.append(self.engine.round({"net": self.servers[-1]}, (0, 1, 2), t)["net"])
            self.bytes.append((self.engine.traffic.down[0], self.engine.traffic.up[0]))


def mean(models: dict[int, Weights], name: str, weights: Any) -> Any:
    found = [{**models[k].params, **models[k].buffers}[name].numpy() for k in range(3)]
    return np.average(found, axis=0, weights=weights)


def statistics_after(start: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """A running mean after the batches of `seen` [n, D], four rows each."""
    for batch in seen.split(4):
        start = 0.9 * start + 0.1 * batch.mean(0)
    return start


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("aggregation", ["samples", "uniform"])
def test_parameters_and_by_default_buffers_are_averaged(aggregation: Any, engine: Any) -> None:
    run = Run(FedAvg(local=LOCAL, aggregation=aggregation), engine)
    weights = SIZES if aggregation == "samples" else None
    for t in range(2):
        after = {**run.servers[t + 1].params, **run.servers[t + 1].buffers}
        for name in (*run.servers[0].params, *MOVING):
            np.testing.assert_allclose(after[name], mean(run.ends[t], name, weights), rtol=1e-12, err_msg=name)
    assert int(run.servers[2].buffers["1.num_batches_tracked"]) == sum(-(-n // 4) for n in (12, 12))  # the largest
    everything = tree.nbytes(run.servers[0])
    assert run.bytes == [(everything, everything)] * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_the_servers_buffers_go_down_and_never_change(engine: Any) -> None:
    run = Run(FedAvg(local=LOCAL, buffers="server"), engine)
    for t in range(2):
        assert all(torch.equal(run.servers[t + 1].buffers[n], b) for n, b in run.servers[0].buffers.items())
        for name in run.servers[0].params:
            np.testing.assert_allclose(run.servers[t + 1].params[name], mean(run.ends[t], name, SIZES), rtol=1e-12)
        assert float(run.ends[t][2].buffers["1.running_mean"].abs().max()) > 0.5  # clients moved their copies
    assert int(run.ends[1][0].buffers["1.num_batches_tracked"]) == 1  # and began with the server's again
    whole, params = tree.nbytes(run.servers[0]), tree.nbytes(run.servers[0].params)
    assert run.bytes == [(whole, params)] * 2
    evaluated = run.engine.personal({"net": run.servers[2]}, [0, 1, 2], 2)
    assert all(torch.equal(evaluated[k].buffers[n], run.servers[0].buffers[n]) for k in range(3) for n in MOVING)


@pytest.mark.parametrize("engine", ENGINES)
def test_local_buffers_stay_with_each_client(engine: Any) -> None:
    run = Run(FedAvg(local=LOCAL, buffers="local"), engine)
    params = tree.nbytes(run.servers[0].params)
    assert run.bytes == [(params, params)] * 2
    population = run.engine.population
    evaluated = run.engine.personal({"net": run.servers[2]}, [0, 1, 2], 2)
    for k in range(3):
        own = run.engine.states[k]
        for name in MOVING:
            assert torch.equal(own.buffers[name], run.ends[1][k].buffers[name])
            assert torch.equal(evaluated[k].buffers[name], own.buffers[name])
        assert int(own.buffers["1.num_batches_tracked"]) == 2 * -(-SIZES[k] // 4)  # they went on from round to round
        for name, value in run.servers[2].params.items():
            assert torch.equal(evaluated[k].params[name], value)
    x = population.federation.train.x[population.federation.partition.rows(0).copy()].double()
    start = run.servers[0].params
    want = statistics_after(torch.zeros(5, dtype=torch.float64), x @ start["0.weight"].mT + start["0.bias"])
    np.testing.assert_allclose(run.ends[0][0].buffers["1.running_mean"], want, rtol=1e-9)  # one batch: weights as sent


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_round_of_pfedsd_is_the_plain_mean_of_fedavg(engine: Any) -> None:
    # Nobody has a model of its own yet: no term, whatever lam; and clients count alike, whatever their sizes.
    pfedsd = Run(PFedSD(local=LOCAL, lam=3.0, T=2.0), engine)
    uniform = Run(FedAvg(local=LOCAL, aggregation="uniform"), engine)
    by_size = Run(FedAvg(local=LOCAL), engine)
    for a, b in zip(tree.leaves(pfedsd.servers[1]), tree.leaves(uniform.servers[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)
    assert not torch.allclose(pfedsd.servers[1].params["3.weight"], by_size.servers[1].params["3.weight"], rtol=1e-3)
    assert not torch.allclose(pfedsd.servers[2].params["3.weight"], uniform.servers[2].params["3.weight"], rtol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_pfedsd_judges_by_the_last_local_model_and_the_new_by_the_global_one(engine: Any) -> None:
    run = Run(PFedSD(local=LOCAL), engine)
    evaluated = run.engine.personal({"net": run.servers[2]}, [0, 1, 2], 2)
    for k in range(3):
        for a, b in zip(tree.leaves(evaluated[k]), tree.leaves(run.ends[1][k]), strict=True):
            assert torch.equal(a, b)
    run.engine.states = type(run.engine.states)()  # nobody has taken part
    fresh = run.engine.personal({"net": run.servers[2]}, [1], 2)[1]
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(fresh), tree.leaves(run.servers[2]), strict=True))


class Ordered(nn.Module):
    """Layers with buffers between, and one whose tensors stand last though it is used first."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
        self.head = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


NORM = ["body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"]


@pytest.mark.parametrize(
    ("shared", "own"),
    [
        ("* !last:1", ["head.weight", "head.bias"]),
        ("* !last:2", [*NORM[:2], "head.weight", "head.bias", *NORM[2:]]),
        ("last:2", ["body.0.weight", "body.0.bias"]),
        ("last:9", []),
        ("* !last:2 *.running_*", [*NORM[:2], "head.weight", "head.bias", NORM[4]]),
        ("head.*", ["body.0.weight", "body.0.bias", *NORM]),
        ("* !head !body.1", [*NORM[:2], "head.weight", "head.bias", *NORM[2:]]),  # layers by their names
        ("* !body.0", ["body.0.weight", "body.0.bias"]),
        ("body", ["head.weight", "head.bias"]),
    ],
)
def test_a_part_of_the_layers_is_shared(shared: str, own: list[str]) -> None:
    model, algorithm = Model(Ordered, name="ordered"), FedAvg(shared=shared)
    weights = model.init(0)
    kept, sent = algorithm.own(weights), algorithm.down(weights)
    assert [*kept.params, *kept.buffers] == own
    assert {*sent.params, *sent.buffers} == {*weights.params, *weights.buffers} - set(own)
    whole = model.arrange(sent.merge(kept))
    assert (list(whole.params), list(whole.buffers)) == (list(weights.params), list(weights.buffers))


def test_a_layer_whose_weight_is_made_of_others_is_one_layer() -> None:
    """PyTorch's parametrizations put a module of their own into the names: `1.parametrizations.weight.original0`."""
    made = nn.utils.parametrizations
    layers = made.spectral_norm(nn.Linear(6, 5)), made.weight_norm(nn.Linear(5, 4))
    weights = Model(lambda: nn.Sequential(*layers), name="made").init(0)
    last = FedAvg(shared="last:1").down(weights)
    assert {*last.params, *last.buffers} == {n for n in weights.params if n.startswith("1.")}
    assert len(last.params) == 3
    rest = FedAvg(shared="last:2").own(weights)
    assert not rest.params
    assert not rest.buffers
    root = Model(lambda: made.weight_norm(nn.Linear(5, 4)), name="root").init(0)
    assert not FedAvg(shared="last:1").own(root).params


@pytest.mark.parametrize("engine", ENGINES)
def test_the_last_layer_stays_with_its_client(engine: Any) -> None:
    run = Run(FedAvg(local=LOCAL, shared="* !last:1"), engine)
    for name in ("3.weight", "3.bias"):
        assert torch.equal(run.servers[2].params[name], run.servers[0].params[name])
        for k in range(3):
            assert torch.equal(run.engine.states[k].params[name], run.ends[1][k].params[name])
    for name in ("0.weight", "1.bias"):
        np.testing.assert_allclose(run.servers[2].params[name], mean(run.ends[1], name, SIZES), rtol=1e-12)


@pytest.mark.parametrize("word", ["last:", "!last:0", "last:-1", "last:x"])
def test_layers_are_counted_from_one(word: str) -> None:
    with pytest.raises(SettingError, match=rf"the last N layers are written last:N with N >= 1, got '{word}'"):
        FedAvg(shared=f"* {word}")


@pytest.mark.parametrize("shared", ["* !hed.*", "body.0.* hed.*", "!hed.* *"])
def test_a_pattern_that_matches_no_layer_is_refused(shared: str) -> None:
    rule = (
        r"'hed\.\*' matches no tensor of ordered: write patterns of its layers, body\.0, body\.1, head, a kind of "
        r"layers \(norm, conv, linear, embedding\), or last:N"
    )
    with pytest.raises(SettingError, match=rule):
        Loop(
            clients_of([(np.zeros((4, 4)), np.arange(4))], model=Model(Ordered, name="ordered")), FedAvg(shared=shared)
        )


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_personal_layers_of_fedper(engine: Any) -> None:
    per, shared = (Run(a, engine) for a in (FedPer(local=LOCAL), FedAvg(local=LOCAL, shared="* !last:1")))
    for mine, theirs in ((per.servers, shared.servers), (per.ends, shared.ends)):
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(mine), tree.leaves(theirs), strict=True))
    assert per.bytes == shared.bytes
    with pytest.warns(UserWarning, match="FedPer with personal_layers =  is FedAvg"):
        nothing = Run(FedPer(local=LOCAL, personal_layers=""), engine)
    assert not nothing.engine.algorithm.personalises
    whole = Run(FedAvg(local=LOCAL), engine)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(nothing.servers), tree.leaves(whole.servers), strict=True))
    with pytest.raises(
        SettingError, match=r"'hed\.\*' matches no tensor of net: .* layers, 0, 1, 3, a kind .*, or last:N"
    ):
        Run(FedPer(personal_layers="hed.*"), engine)
    with pytest.raises(SettingError, match=r"shared = '\* !\*' matches no parameter of net"):
        Run(FedPer(personal_layers="*"), engine)


class Residual(nn.Module):
    """Three BatchNorm layers, one of which goes by its place alone, as `downsample.1` of a ResNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1, self.fc2, self.bn2 = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.block = nn.ModuleDict({"downsample": nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False))})
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.bn2(self.fc2(torch.tanh(self.bn1(self.fc1(x)))))
        return self.head(torch.tanh(z + self.block["downsample"](x)))


@pytest.mark.parametrize(
    ("algorithm", "word"),
    [
        (FedAvg(shared="* !*bn*"), r"\*bn\*"),
        (PFedSD(shared="*bn? head"), r"\*bn\?"),
        (FedPer(personal_layers="bn[12]"), r"bn\[12\]"),
    ],
)
def test_a_pattern_that_misses_normalisation_layers_is_warned_of(algorithm: Any, word: str) -> None:
    said = (
        rf"'{word}' matches 2 of the 3 BatchNorm1d layers of residual, without block.downsample.1: write 'norm' for "
        "all normalisation layers, or name"
    )
    data = [(np.zeros((4, 6)), np.arange(4))] * 2
    with pytest.warns(SettingWarning, match=said):
        Loop(clients_of(data, model=Model(Residual, name="residual")), algorithm)


@pytest.mark.parametrize(
    "shared",
    ["* !*bn* !*downsample.1", "*", "* !last:1", "* !bn1", "* !bn*.weight !bn*.bias", "*1 head", "last:2", "* !block*"],
)
def test_all_or_none_or_some_by_name_are_not(shared: str) -> None:
    """Statistics beside other layers, or a part of each layer, may well be meant."""
    data = [(np.zeros((4, 6)), np.arange(4))] * 2
    Loop(clients_of(data, model=Model(Residual, name="residual")), FedAvg(shared=shared))
