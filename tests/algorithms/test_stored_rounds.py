"""Whole rounds of ten methods beside numbers of public code and of independent arithmetic (golden/more)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from common_rounds import (
    EXACT,
    MODEL,
    assert_evaluated,
    begun,
    local_of,
    rounds,
    sampled,
    watched,
    weights_of,
)
from common_runs import PEOPLE, flatten as flat
from conftest import golden

from fedloom.algorithms import ALGORITHMS, fedavgm, feddyn, fedgkd
from fedloom.core.tree import zeros_like
from fedloom.core.types import Params, Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages

ENGINES = [Loop, Stacked, Messages]
SETTINGS = {
    "fedexp": {"eps": "eps"},
    "q_fedavg": {"q": "q"},
    "fedsam": {"rho": "rho"},
    "fedlc": {"tau": "tau"},
    "fedgkd": {"gamma": "gamma", "M": "M", "T": "T"},
    "fml": {"alpha": "alpha", "beta": "beta"},
    "fedala": {name: name for name in ("p", "eta", "s", "threshold", "max_passes")},
    "ifca": {"k": "k"},
    "feddyn": {"alpha": "alpha"},
    "fedavgm": {"momentum": "server_momentum", "server_lr": "server_lr"},
}
"""By method, the names of its settings and those of a file."""
SERVERS: dict[str, Callable[[Any, Weights], Any]] = {
    "fedgkd": lambda g, w: fedgkd.Server(last=(w,) * int(g["M"]), made=torch.zeros((), dtype=torch.int64)),
    "ifca": lambda g, w: tuple(weights_of(g, vector) for vector in g["init_models"]),
    "feddyn": lambda g, w: feddyn.Server(w=w, h=zeros_like(w.params)),
    "fedavgm": lambda g, w: fedavgm.Server(w=w, v=zeros_like(w.params)),
}
"""By method, the server before round 0; of the others it is the model."""


def algorithm_of(name: str, g: Any) -> Any:
    own = {setting: g[key].item() for setting, key in SETTINGS[name].items()}
    weighting = {} if name == "feddyn" else {"aggregation": str(g["weighting"])}
    return ALGORITHMS[name](local=local_of(g), **own, **weighting)


def globals_of(name: str, server: Any) -> Any:
    """The model or models of the server as the file has them."""
    if name == "ifca":
        return np.stack([flat(theta.params) for theta in server])
    return flat((server if isinstance(server, Weights) else ALGORITHMS[name].global_weights(None, server)).params)


def uploaded(upload: Any) -> Params:
    """The model of an upload, which may be the first of what is sent."""
    value = upload[0] if isinstance(upload, tuple) else upload
    value = value.value
    return (value[0] if isinstance(value, tuple) else value).params


def close(found: Any, stored: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), stored, **EXACT)


@pytest.mark.some(5)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SETTINGS)
def test_rounds(name: str, engine: Any) -> None:
    g = golden(f"more/{name}_a")
    run = begun(engine, algorithm_of(name, g), g)
    first = weights_of(g, g["init"])
    server, seen = {"net": SERVERS.get(name, lambda g, w: w)(g, first)}, watched(run)
    for k in PEOPLE:
        run.states[k] = run.algorithm.init_client(first, MODEL, 0)
    for r in rounds(g):
        server = run.round(server, sampled(g, r), r)
        for k in sampled(g, r):
            close(flat(uploaded(seen[k].upload)), g[f"r{r}_k{k}_upload"])
            close(seen[k].losses[-1], g[f"r{r}_k{k}_losses"])
        close(globals_of(name, server["net"]), g[f"r{r}_global"])
        CHECKS.get(name, lambda *_: None)(g, r, run, server["net"], seen)
        assert_evaluated(g, run, server, r)


def check_fedexp(g: Any, r: int, run: Any, server: Any, seen: Any) -> None:
    close(run.traffic.noted["server_eta_g"], g[f"r{r}_eta_g"])


def check_q_fedavg(g: Any, r: int, run: Any, server: Any, seen: Any) -> None:
    total = 0.0
    for k in sampled(g, r):
        F_q, lr_h = seen[k].upload[1].value
        close(F_q, g[f"r{r}_k{k}_F"] ** g["q"])
        total += float(seen[k].upload[1].weight * lr_h) / float(g["lr"])
    close(total, g[f"r{r}_sum_h"])


def check_fml(g: Any, r: int, run: Any, server: Any, seen: Any) -> None:
    for k in PEOPLE:
        close(flat(run.states[k].params), g[f"r{r}_personal"][k])


def check_fedala(g: Any, r: int, run: Any, server: Any, seen: Any) -> None:
    for k in PEOPLE:
        close(flat(run.states[k].v.params), g[f"r{r}_personal"][k])
        close(flat(run.states[k].W), g[f"r{r}_W"][k])


def check_ifca(g: Any, r: int, run: Any, server: Any, seen: Any) -> None:
    chosen = [int(seen[k].upload.value[1]) for k in sampled(g, r)]
    assert chosen == g[f"r{r}_chosen"].tolist()


def check_feddyn(g: Any, r: int, run: Any, server: Any, seen: Any) -> None:
    close(flat(server.h), g[f"r{r}_h"])
    for k in sampled(g, r):
        close(flat(run.states[k]), g[f"r{r}_k{k}_g"])


def check_fedavgm(g: Any, r: int, run: Any, server: Any, seen: Any) -> None:
    close(flat(server.v), g[f"r{r}_v"])


CHECKS: dict[str, Any] = {
    "fedexp": check_fedexp,
    "q_fedavg": check_q_fedavg,
    "fml": check_fml,
    "fedala": check_fedala,
    "ifca": check_ifca,
    "feddyn": check_feddyn,
    "fedavgm": check_fedavgm,
}
