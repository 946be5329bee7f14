"""IFCA: whole rounds in plain PyTorch, who chooses which model, models that nobody chooses, and groups that part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from plain_training import COHORTS, DATA, LOCAL, SIZES, Tensors, examples, mean, network, trained

from fedloom.algorithms import IFCA, FedAvg
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import Tiny, assert_params, clients_of

ENGINES = [Loop, Stacked, Messages]


def best(models: list[Tensors], k: int) -> int:
    x, y = examples(k)
    return int(np.argmin([float(F.cross_entropy(network(theta)(x), y).detach()) for theta in models]))


def close(ours: Any, theirs: Tensors) -> None:
    for n, value in theirs.items():
        torch.testing.assert_close(ours.params[n], value, rtol=1e-10, atol=1e-10)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("k", "aggregation"), [(2, "uniform"), (4, "samples")])
def test_rounds(k: int, aggregation: Any, engine: Any) -> None:
    run = engine(clients_of(DATA), IFCA(k=k, aggregation=aggregation, local=LOCAL))
    server = run.init()
    models = [{n: t.clone() for n, t in theta.params.items()} for theta in server["tiny"]]
    assert not any(torch.equal(a["fc1.weight"], b["fc1.weight"]) for i, a in enumerate(models) for b in models[:i])
    some = set()
    for t, cohort in enumerate(COHORTS):
        chosen = {i: best(models, i) for i in cohort}
        some |= {*chosen.values()}
        made = {i: trained(models[j], i) for i, j in chosen.items()}
        for j in {*chosen.values()}:
            there = [i for i in cohort if chosen[i] == j]
            models[j] = mean([made[i] for i in there], [SIZES[i] if aggregation == "samples" else 1 for i in there])
        server = run.round(server, cohort, t)
        for ours, theirs in zip(server["tiny"], models, strict=True):
            close(ours, theirs)
        for i, weights in run.personal(server, (0, 1, 2), t).items():
            close(weights, models[best(models, i)])
    assert len(some) > 1  # or the test would say nothing


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_clients_whose_labels_contradict_part(engine: Any) -> None:
    """Two groups with opposite labels: no one model learns both, and two models learn one each."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(20, 6)) for _ in range(4)]
    data = [(x, (x[:, 0] > 0).astype(int) if i < 2 else (x[:, 0] <= 0).astype(int)) for i, x in enumerate(xs)]
    local = Local(epochs=4, batch_size=10, optimiser=SGD(lr=0.5))
    run = engine(clients_of(data), IFCA(k=2, local=local))
    server = run.init()
    for t in range(8):
        server = run.round(server, (0, 1, 2, 3), t)
    evaluated = run.personal(server, (0, 1, 2, 3), 8)
    assert_params(evaluated[0], evaluated[1])
    assert_params(evaluated[2], evaluated[3])
    for i, (x, y) in enumerate(data):
        answers = network(dict(evaluated[i].params))(torch.from_numpy(x)).argmax(1).numpy()
        assert (answers == y).mean() > 0.8
    assert not torch.allclose(evaluated[0].params["fc2.weight"], evaluated[2].params["fc2.weight"], atol=0.1)


def test_the_record_says_how_many_chose_each_model() -> None:
    run = Loop(clients_of(DATA), IFCA(k=3, local=LOCAL))
    server = run.init()
    models = [dict(theta.params) for theta in server["tiny"]]
    run.round(server, (0, 1, 2), 0)
    want = np.bincount([best(models, i) for i in (0, 1, 2)], minlength=3)
    assert run.traffic.noted["server_chosen"] == want.tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_nobody_chooses_a_model_whose_loss_is_no_number(engine: Any) -> None:
    run = engine(clients_of(DATA, dtype=torch.float32), IFCA(k=3, local=LOCAL))
    sound, *others = run.init()["tiny"]
    far = [Weights({n: torch.full_like(t, 3e38) for n, t in theta.params.items()}) for theta in others]
    spoilt = (*far, sound)  # finite, and of infinite logits
    after = run.round({"tiny": spoilt}, (0, 1, 2), 0)["tiny"]
    assert run.traffic.noted["server_chosen"] == [0, 0, 3]
    assert not torch.equal(after[2].params["fc1.weight"], sound.params["fc1.weight"])
    for weights in run.personal({"tiny": spoilt}, (0, 1, 2), 0).values():
        assert_params(weights, sound, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:IFCA with k = 1")
@pytest.mark.parametrize("engine", ENGINES)
def test_one_model_is_fedavg(engine: Any) -> None:
    runs = [engine(clients_of(DATA), a) for a in (IFCA(k=1, local=LOCAL), FedAvg(aggregation="uniform", local=LOCAL))]
    (ours,), plain = (run.round(run.init(), (0, 1, 2), 0)["tiny"] for run in runs)
    assert all(torch.equal(ours.params[n], t) for n, t in plain.params.items())


def test_a_module_is_one_network() -> None:
    model = Model(Tiny(), name="tiny")
    with pytest.raises(SettingError, match="IFCA begins with k = 2 networks that differ, and tiny is a module"):
        Loop(clients_of(DATA, model=model), IFCA(local=LOCAL)).init()
