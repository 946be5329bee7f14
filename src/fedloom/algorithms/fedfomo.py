"""FedFomo: first-order model optimisation; each client mixes the models of others that help on its validation data.

Zhang, Sapra, Fidler, Yeung, Alvarez. *Personalized Federated Learning with First Order Model Optimization.* ICLR 2021.
https://arxiv.org/abs/2012.08565, eq. 3 to 5 and Algorithm 1.

    w_n    = (L(base) - L(theta_n)) / ||theta_n - base||        L: mean loss on the client's own validation examples
    start  = base + sum_n w^_n (theta_n - base)                 w^_n = max(w_n, 0) / sum_m max(w_m, 0)
    server   P[k, n] <- P[k, n] + w_n / |sum_m w_m|             n: who was sent to client k

base: the client's model before its last local training. theta_n: what that training made of it, which must compete, and
up to M models of other clients, as the server last saw them. Where none helps, start = base. Then local training, from
`start`; what it ends with is the client's model, is sent to the server, and evaluates the client.

The server has no model. Of the clients that uploaded before it chooses M for client k, one after the other: with
probability max(0, epsilon - decay * round) any of them, else the one with the highest P[k, n], ties at random. In the
first round no client has uploaded: local training alone. With several architectures a client is sent models of its own.

Validation examples on clients are needed: `val_fraction=0.2` of `federate`, `--val-fraction 0.2`. A client that has
none, where others have, keeps its own model: with nothing to compare by, it learns alone.

Down: up to M models. Up: the model, and M + 1 numbers w_n. Kept by the client: its model, and base. Kept by the server:
each client's last model and its row of P, on disk beyond `state_memory_mib`. There is no value that gives FedAvg (no
model is common).

Differences from the paper: M counts the others beside the own model, as in the authors' code; candidates are all
clients that uploaded before, not only those of the last round.

Differences from the authors' code: its norm is `l1` by default; a model at distance 0 has weight 0, and so
has one whose loss is not finite. BatchNorm statistics are mixed like parameters, and do not count in distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import fedloom as fl
from fedloom.core.random import generator

Norm = Literal["euclid", "l1", "l2", "l2_root"]


@fl.state
class FomoClient:
    base: fl.Weights  # its model before its last local training
    theta: fl.Weights  # and after it


@dataclass(frozen=True, kw_only=True)
class FedFomo(fl.Algorithm[Tensor, FomoClient]):
    """Send each client models of others, which it weighs by its validation loss."""

    M: fl.Count = 4
    """Models of others that a client is sent. 4 and its own are the paper's five; the authors' commands have 4 and 9,
    for five and ten."""
    epsilon: fl.NonNegative = 0.3
    """Exploration in round 0; the default is that of the authors' code."""
    decay: fl.NonNegative = 0.05
    """Decrease of the exploration in each round; the default is that of the authors' code."""
    norm: Norm = "euclid"
    """Distance of two models: `euclid`, the paper's; `l1`, the default of the authors' code; `l2`, its name for the
    squared distance; `l2_root`, the sum of the norms of each tensor."""

    requires = fl.Requires(validation=True)

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Tensor:
        return torch.full((num_clients,), -1)  # who uploaded before, in order; -1: nobody

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> FomoClient:
        return FomoClient(base=initial, theta=initial)

    def init_rows(self, initial: fl.Weights, model: fl.Model, *, num_clients: int) -> dict[str, Any]:
        return {"model": initial, "affinity": torch.zeros(num_clients)}

    @fl.on_client
    def local_update(
        self, client: fl.Client[FomoClient], sent: tuple[fl.Maybe[fl.Weights], ...]
    ) -> tuple[FomoClient, tuple[fl.Weights, Tensor]]:
        base, theta = client.state.base, client.state.theta
        models = [theta, *(maybe.value for maybe in sent)]
        gain = validation_loss(client, base) - torch.stack([validation_loss(client, n) for n in models])
        away = torch.stack([distance(n.params - base.params, self.norm) for n in models])
        there = torch.stack([torch.ones_like(client.num_examples.bool()), *(maybe.present for maybe in sent)])
        w = torch.where(there, fomo_weights(gain, away), 0.0)
        alone = fl.Maybe(present=client.val.num_examples == 0, value=theta)
        start = alone.otherwise(mixed(base, models, w))
        trained = self.train(client, start)
        return FomoClient(base=start, theta=trained), (trained, w)

    def round(self, uploaded: Tensor, cohort: fl.Cohort) -> Tensor:
        known, key = uploaded[uploaded >= 0].tolist(), cohort.key("candidates")
        chosen: dict[int, list[int]] = {}  # by client, M numbers of others; -1: nobody
        for k in cohort.ids.tolist():
            (affinity,) = cohort.rows("affinity", torch.tensor([k]))
            others = [n for n in known if n != k]
            found = choose(affinity, others, self.M, self.epsilon - self.decay * cohort.round, generator(key, k))
            chosen[k] = found + [-1] * (self.M - len(found))

        def candidates(clients: Tensor) -> tuple[tuple[fl.Maybe[fl.Weights], ...]]:
            theirs = torch.tensor([chosen[k] for k in clients.tolist()], device=clients.device)  # [k, M]
            return (tuple(last_model(cohort, n, clients) for n in theirs.unbind(1)),)

        replies = cohort.gather(self.local_update, scatter=candidates)
        models, w = replies.value
        theirs = torch.tensor([chosen[k] for k in replies.ids.tolist()], device=w.device)  # [K, M]
        more = torch.where(theirs >= 0, affinity_increment(w)[:, 1:], 0.0)  # without the own model
        affinities = replies.cohort.rows("affinity")  # [K, N]
        replies.cohort.keep("model", models)
        replies.cohort.keep("affinity", affinities.scatter_add(1, theirs.clamp(min=0), more))
        now = sorted({*known, *replies.ids.tolist()})
        return uploaded.new_tensor(now + [-1] * (len(uploaded) - len(now)))

    def personal(self, client: fl.Client[FomoClient], sent: tuple[()]) -> fl.Weights:
        return client.state.theta


def validation_loss(client: fl.Client[FomoClient], weights: fl.Weights) -> Tensor:
    """Return the mean loss on the client's validation examples, [] float64; 0 where it has none."""
    return fl.mean_loss(client.model, client.task, weights, client.val)


def distance(moved: fl.Params, norm: Norm) -> Tensor:
    """Return the norm of a difference of models, []: Euclidean, `l1`, its square (`l2`), or summed over tensors."""
    sizes = torch.stack([t.abs().sum() if norm == "l1" else t.square().sum() for t in moved.values()])
    if norm == "l2_root":
        return sizes.sqrt().sum()
    return sizes.sum().sqrt() if norm == "euclid" else sizes.sum()


def fomo_weights(gain: Tensor, away: Tensor) -> Tensor:
    """w_n of models [M] that lower the validation loss by `gain`, `away` from base; 0 for one that is base.

    It is 0, too, for a model whose loss or distance is no finite number: it would take the mixture and all affinity.
    """
    compared = gain.isfinite() & away.isfinite() & (away > 0)
    return torch.where(compared, gain.to(away.dtype) / torch.where(compared, away, 1.0), 0.0)


def mixed(base: fl.Weights, models: Sequence[fl.Weights], w: Tensor) -> fl.Weights:
    """Return base + sum_n w^_n (theta_n - base), with the positive w_n alone; base where there is none."""
    kept = w.clamp(min=0.0)
    total, start = kept.sum(), base
    for share, model in zip(kept / torch.where(total > 0, total, 1.0), models, strict=True):
        start = fl.Maybe(present=share > 0, value=start + share * (model - base)).otherwise(start)
    return start


def affinity_increment(w: Tensor) -> Tensor:
    """w_n / |sum_m w_m| of each client, [K, M]; 0 where the sum is."""
    total = w.sum(1, keepdim=True).abs()
    return torch.where(total > 0, w / torch.where(total > 0, total, 1.0), 0.0)


def choose(affinity: Tensor, others: Sequence[int], count: int, explore: float, rng: np.random.Generator) -> list[int]:
    """Choose up to `count` of `others`, one by one: any with probability `explore`, else that of highest affinity.

    `affinity`: of all clients, [N]. Equal ones come in random order.
    """
    of, chosen = affinity.tolist(), list[int]()
    left = sorted(rng.permutation(np.array(others, np.int64)).tolist(), key=lambda n: -of[n])
    while left and len(chosen) < count:
        chosen.append(left.pop(int(rng.integers(len(left))) if rng.random() < explore else 0))
    return chosen


def last_model(cohort: fl.Cohort, others: Tensor, clients: Tensor) -> fl.Maybe[fl.Weights]:
    """Return the last models of `others` [k], stacked; none where the number is -1. Row `clients` gives the shapes."""
    present = others >= 0
    return fl.Maybe.where(present, cohort.rows("model", torch.where(present, others, clients)))
