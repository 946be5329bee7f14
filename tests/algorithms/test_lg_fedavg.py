"""LG-FedAvg after rounds of FedAvg: who starts from what, and what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedloom.algorithms import FedAvg, FedPer, LGFedAvg
from fedloom.coordinator import Job, RunSettings
from fedloom.coordinator.rounds import Coordinator
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Maybe, Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import TINY, DenseTiny, clients_of, random_data

ENGINES = [Loop, Stacked, Messages]
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.2, momentum=0.9))
HEAD, WHOLE = 8 * (5 * 4 + 4), 8 * TINY.num_params


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_clients_start_from_the_pretrained_lower_layers(engine: Any) -> None:
    population = clients_of(random_data((5, 11, 8)))
    run = engine(population, LGFedAvg(global_modules="fc2.*", pretrain_rounds=2, local=LOCAL))
    fedavg = engine(population, FedAvg(aggregation="uniform", local=LOCAL))
    server, plain = run.init(), fedavg.init()
    for t, cohort in enumerate([(0, 1), (1, 2)]):
        server, plain = run.round(server, cohort, t), fedavg.round(plain, cohort, t)
        assert (run.traffic.down[1], run.traffic.up[1]) == (WHOLE, WHOLE)
    assert same(server, plain)
    for evaluated in run.personal(server, range(3), 1).values():
        assert same(evaluated, plain["tiny"])

    # From here on as without pretraining, from a server and clients that hold the checkpoint.
    split = engine(population, LGFedAvg(global_modules="fc2.*", local=LOCAL))
    for k in range(3):
        split.states[k] = Maybe.some(split.algorithm.own(plain["tiny"]))
    for t, cohort in enumerate([(0, 1), (0, 2)], 2):
        server, plain = run.round(server, cohort, t), split.round(plain, cohort, t)
        assert (split.traffic.down[0], split.traffic.up[0]) == (HEAD, HEAD)
        flag = 1  # of layers that are sent or not
        assert run.traffic.up[0] == HEAD
        assert run.traffic.down[0] == flag + (WHOLE if t == 2 else HEAD)
        if t == 2:  # client 2 has not started: the checkpoint's lower layers under the newest head
            has = [bool(run.algorithm.has_personal(tree.take(run.stack([k]), 0))) for k in range(3)]
            assert has == [True, True, False]
            assert same(run.personal(server, [2], t)[2], split.personal(plain, [2], t)[2])
    assert run.traffic.down[2] == flag + WHOLE
    assert same(server, plain)
    for k in range(3):
        assert same(run.states[k], split.states[k])
    for one in (run, fedavg, split):
        one.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("aggregation", ["uniform", "samples"])
@pytest.mark.parametrize("buffers", ["average", "server"])
def test_pretraining_is_fedavg_with_batchnorm_too(buffers: Any, aggregation: Any, engine: Any) -> None:
    """Running statistics of the lower layers: averaged or the server's, as FedAvg has them; clients begin there."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(1.0, 2.0, size=(n, 3, 8, 8)), rng.integers(4, size=n)) for n in (5, 11, 8)]
    population = clients_of(data, model=Model(DenseTiny, name="norms"))
    settings: dict[str, Any] = {"aggregation": aggregation, "buffers": buffers, "local": LOCAL}
    run = engine(population, LGFedAvg(global_modules="fc.*", pretrain_rounds=3, **settings))
    fedavg = engine(population, FedAvg(**settings))
    begun = plain = fedavg.init()
    server = run.init()
    for t, cohort in enumerate([(0, 1), (1, 2), (0, 1, 2)]):
        server, plain = run.round(server, cohort, t), fedavg.round(plain, cohort, t)
        assert run.traffic.down == fedavg.traffic.down
        assert run.traffic.up == fedavg.traffic.up
        assert same(server, plain)
    moved = {n for n, t in plain["norms"].buffers.items() if not torch.equal(t, begun["norms"].buffers[n])}
    assert moved == (set(plain["norms"].buffers) if buffers == "average" else set())
    evaluated = run.personal(server, [0], 2)[0]
    assert same(evaluated, plain["norms"])
    run.close()
    fedavg.close()


def test_statistics_that_never_leave_clients_are_no_beginning() -> None:
    rule = r"with buffers = 'local' it has no BatchNorm statistics, got pretrain_rounds = 2: set buffers = 'average' or"
    with pytest.raises(SettingError, match=rule):
        LGFedAvg(pretrain_rounds=2, buffers="local")
    LGFedAvg(buffers="local")


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_lower_layers_may_be_the_shared_ones(engine: Any) -> None:
    """`base_global`, as the authors' script for CIFAR-10 has it."""
    run = engine(clients_of(random_data((5, 11, 8))), LGFedAvg(global_modules="fc1.*", local=LOCAL))
    start = run.init()
    sent: dict[int, Weights] = {}
    run.watch = lambda exchange: sent.update({exchange.client: exchange.upload.value})
    server = run.round(start, (0, 1), 0)["tiny"]
    assert set(sent[0].params) == {"fc1.weight", "fc1.bias"}
    for name in sent[0].params:  # a plain mean, whatever the sizes
        torch.testing.assert_close(server.params[name], (sent[0].params[name] + sent[1].params[name]) / 2)
    assert torch.equal(server.params["fc2.weight"], start["tiny"].params["fc2.weight"])
    run.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_all_modules_global_are_fedavg_with_the_plain_mean(engine: Any) -> None:
    population = clients_of(random_data((5, 11, 8)))
    with pytest.warns(UserWarning, match=r"LGFedAvg with global_modules = \*, pretrain_rounds = 0 is FedAvg"):
        mine = engine(population, LGFedAvg(global_modules="*", local=LOCAL))
    theirs = engine(population, FedAvg(aggregation="uniform", local=LOCAL))
    a, b = mine.init(), theirs.init()
    for t in range(2):
        a, b = mine.round(a, (0, 1, 2), t), theirs.round(b, (0, 1, 2), t)
        assert same(a, b)


def test_modules_that_are_not_there_are_refused() -> None:
    population = clients_of(random_data((5, 11, 8)))
    with pytest.raises(SettingError, match=r"'fc3\.\*' matches no tensor of tiny: .*, fc1, fc2, a kind .*, or last:N"):
        Loop(population, LGFedAvg(global_modules="fc2.* fc3.*")).init()


def test_the_manifest_lists_what_is_shared() -> None:
    population = clients_of(random_data((5, 11, 8)))
    settings = RunSettings(cohort_size=2, engine="loop", dtype="float64", compilation="none")
    for algorithm, shared in (
        (LGFedAvg(global_modules="last:1"), {"tiny": ["fc2.weight", "fc2.bias"]}),
        (FedPer(personal_layers="last:1"), {"tiny": ["fc1.weight", "fc1.bias"]}),
        (FedAvg(), None),
    ):
        job = Job(algorithm=algorithm, federation=population.federation, model=TINY, settings=settings)
        assert Coordinator(job).facts().get("shared") == shared
