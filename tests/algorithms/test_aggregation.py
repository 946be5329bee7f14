"""What each client counts in the mean of the models, for every algorithm that has the setting."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fedloom.algorithms import (
    ALGORITHMS,
    FML,
    IFCA,
    APFLDeng,
    FedAdagrad,
    FedAdam,
    FedBN,
    FedDyn,
    FedExP,
    FedRep,
    FedYogi,
    LGFedAvg,
    PFedMe,
    PFedSD,
)
from fedloom.core import tree
from fedloom.core.types import Weighted
from fedloom.engines.loop import Loop
from fedloom.testing import Subject

HAVE = {name for name, kind in ALGORITHMS.items() if "aggregation" in {f.name for f in dataclasses.fields(kind)}}
UNIFORM = (  # by default, as their papers say
    *(PFedSD, FedRep, FedBN, LGFedAvg, PFedMe, FedAdam, FedYogi, FedAdagrad, FedExP, APFLDeng, IFCA, FML),
)
OTHERS = {"centralised", "q_fedavg"}  # who averages nothing, and whose weights are losses too: test_q_fedavg.py


def weights_sent(algorithm: Any) -> dict[int, list[int]]:
    """Of each client of a cohort of unequal sizes, the weights of what it sent to be averaged, models first."""
    subject = Subject.of(algorithm)
    run = Loop(subject.population(), subject.algorithm)
    sent: dict[int, list[int]] = {}

    def watch(exchange: Any) -> None:
        nodes = tree.flatten(exchange.upload, is_leaf=lambda n: isinstance(n, Weighted))[0]
        sent[exchange.client] = [int(n.weight) for n in nodes if isinstance(n, Weighted)]

    run.watch = watch
    run.round(run.init(), subject.cohorts[0], 0)
    sizes = {k: int(run.population.sizes[k]) for k in sent}
    assert len(set(sizes.values())) > 1
    assert min(sizes.values()) > 1
    return {k: [{sizes[k]: -1}.get(w, w) for w in weights] for k, weights in sent.items()}  # -1: its examples


@pytest.mark.some(1)
@pytest.mark.parametrize("aggregation", ["samples", "uniform", None])
@pytest.mark.parametrize("name", sorted(HAVE - OTHERS))
def test_models_are_weighed_as_asked_and_by_default_by_samples(name: str, aggregation: Any) -> None:
    settings = {} if aggregation is None else {"aggregation": aggregation}
    by_samples = (aggregation or ("uniform" if ALGORITHMS[name] in UNIFORM else "samples")) == "samples"
    for of_model, *of_the_rest in weights_sent(ALGORITHMS[name](**settings)).values():
        assert of_model == (-1 if by_samples else 1)
        # Changes of control variates and of Fisher sums count alike; the importance of `fedcurv_ni` is a mean.
        assert all(w == (of_model if name == "fedcurv_ni" else 1) for w in of_the_rest)


def test_clients_of_feddyn_count_alike() -> None:
    assert all(weights == [1] for weights in weights_sent(FedDyn()).values())
