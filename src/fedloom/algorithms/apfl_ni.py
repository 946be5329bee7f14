"""APFL (Ni): weights that are partly shared and partly each client's own, and elastic consolidation of the shared part.

Ni, Shen, Zhang. *Adaptive Personalized Federated Learning by Parameter Decomposition and Continual Learning* (in
Chinese). Scientia Sinica Informationis 52, 2022, https://doi.org/10.1360/SSI-2021-0152, eq. 1 to 6, Algorithm 1. It is
not the APFL of Deng, Kamani and Mahdavi (2020), which mixes two models: the name `apfl` alone is refused with the
question which is meant. Experiments: papers/docs/apfl.md.

    w       = W_S(k) * m_k + W_k,   m_k = sigmoid(r_k): one number for each output unit of a layer      (3)
    client  min over W_S(k), r_k, W_k of  L_k(w) + mu / 2 sum_j F_jj (W_S(k),j - W_S,j)^2               (4), (6)
    server  W_S <- sum_k p_k W_S(k),   in some rounds  F <- lam F + sum_k p_k (grad L_k(W_S))^2         (5)

p_k = n_k / n over the clients that answered. A client trains all three together from the W_S that it received, with one
learning rate; in rounds up to `z` it trains W_S(k) alone. r_k and W_k begin in its first round after `z`, from the W_S
of that round. Weights and biases of linear and convolutional layers are decomposed; all else (BatchNorm, recurrent
layers) is shared as it is, and BatchNorm statistics stay with a client's own parts.

A client without own parts is evaluated by W_S (`without_personal` counts these clients): with 1,000 clients, 10 a round
and 150 rounds that is about every fourth.

Clients measure gradients in `forced_rounds`, and once in the round after a plateau: the last `window` losses have a
mean below `delta_mu` and a standard deviation below `delta_sigma`. The next plateau counts only after a peak: a mean
above mean + deviation of the last plateau. The paper has other thresholds for some data, and says nothing of the
window's length. The log has `server_window_mean`, `server_window_std`, `server_plateau` and `server_measured`.

An F with lr * mu * max F >= 2 is refused whenever it has been measured, since the pull would explode. F is of mean
losses also where the task adds them up.

Down: W_S, and F where the client has an older one. Up: W_S(k), its loss, and in rounds that measure the squared
gradient. Kept by the client: r_k and W_k, BatchNorm statistics with them, and the last F that it was sent. mu = 0 with
z beyond the last round is FedAvg. The loss is 4 bytes.

Differences from the paper: it contradicts itself on `decomposition`; a plateau is answered in the next round, once; F
acts from the round after the one that measured it; the window begins armed, as after a peak, and waits until it is
full, where Algorithm 1 begins unarmed and is armed by its first loss, of whatever size. Left out, since no published
number depends on them: an L1 penalty of W_k, masks along inputs, biases that are only shared or only own, gradients at
the decomposed weights, F in every message.

No code was released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.decomposition import decompose, effective, units
from fedloom.algorithms.shared.loss_window import Window
from fedloom.core.fisher import fisher
from fedloom.core.task import Objective

# r at the beginning, and which part of W_S is W_k: by `decomposition`
STARTS = {
    "function_preserving": (1.0, 1 / (1 + math.e)),  # 1 - sigmoid(1)
    "paper_literal": (1.0, 1.0),
    "mask_one": (20.0, 1.0),  # sigmoid(20) = 1 - 2e-9
    "zero_personal": (6.0, 0.0),
    "third": (1.0, 1 / 3),  # FedWeIT
}


@fl.state
class Server:
    w: fl.Weights  # W_S
    F: fl.Params
    version: Tensor  # [] int64: how often F was measured
    pending: Tensor  # [] bool: whether the next round measures it
    window: Window


@fl.state
class Own:
    parts: fl.Maybe[fl.Weights]  # W_k and r_k, and BatchNorm statistics; none before its first round after z
    F: fl.Maybe[fl.Params]  # the newest one that it was sent


Importance = Annotated[fl.Maybe[fl.Params], "fisher"]
Upload = tuple[fl.Weighted[fl.Weights], Annotated[fl.Weighted[Tensor], "control"]]
Measured = tuple[
    fl.Weighted[fl.Weights], Annotated[fl.Weighted[Tensor], "control"], Annotated[fl.Weighted[fl.Params], "fisher"]
]


@dataclass(frozen=True, kw_only=True)
class APFLNi(fl.Algorithm[Server, Own]):
    """Decompose weights into a shared and a personal part, and consolidate the shared one."""

    mu: Annotated[fl.NonNegative, fl.Grid(0.01, 0.1, 1.0, 10.0)] = 1.0
    """Weight of the consolidation; 0: importance is neither measured nor sent. Its grid is ours."""
    lam: Annotated[float, Ge(0), Le(1)] = 1.0
    """Share of F that remains when importance is measured anew."""
    z: fl.WholeNumber = 2
    """Last round, from 0, without decomposition."""
    decomposition: Literal["function_preserving", "paper_literal", "mask_one", "zero_personal", "third"] = (
        "function_preserving"
    )
    """Start of r_k and W_k. `function_preserving`: r_k = 1, and W_k such that the network computes what it did. The
    paper contradicts itself here: it begins masks at 1, which is no value of a sigmoid, so it is r_k. `paper_literal`:
    r_k = 1 and W_k = W_S, as printed, which makes the weights jump to 1.73 W_S. `mask_one`: m_k of 1, W_k = W_S.
    `zero_personal`: m_k near 1, W_k = 0. `third`: W_k = W_S / 3 (FedWeIT)."""
    estimator: Literal["client_grad_sq", "per_batch", "per_sample"] = "client_grad_sq"
    """Estimator of importance. `client_grad_sq`: eq. 5, the square of a client's mean gradient. `per_batch`,
    `per_sample` (the empirical Fisher): means of squares, which are larger."""
    forced_rounds: tuple[int, ...] = (0, 1, 2)
    """Rounds, from 0, in which importance is measured whatever the losses."""
    window: fl.Count = 5
    """Losses by which a plateau is recognised."""
    delta_mu: fl.Positive = 1.0
    """Largest mean of these losses on a plateau, in the unit of the task's loss."""
    delta_sigma: fl.Positive = 0.5
    """Largest standard deviation of these losses on a plateau."""
    window_loss: Literal["participants_before", "global_all_clients"] = "participants_before"
    """Loss that is watched. `participants_before`: of what the cohort received, by the models that evaluate its
    clients. `global_all_clients`: of all clients after the round, which selects all once more in every round, and so
    costs a model down to each. Both are in the unit of the task's objective (an `svm` adds up over examples), without
    the pull."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.keep_optimiser:
            raise fl.SettingError(
                "optimisers are kept by the names of a network's parameters, and APFLNi trains masks and personal "
                "parts beside them, got local.keep_optimiser = True: leave it out, or take FedCurvNi, which has none"
            )

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Server:
        if not units(model):
            raise fl.SettingError(
                f"APFLNi decomposes linear and convolutional layers, and {model.name} has none: give it a network that "
                "has, or train it with FedCurv"
            )
        w = model.init(key)
        never = torch.tensor(False)
        return Server(
            w=w, F=fl.tree.zeros_like(w.params), version=torch.tensor(0), pending=never, window=Window.new(self.window)
        )

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> Own:
        begun = decompose(model, initial, *STARTS[self.decomposition])
        return Own(parts=fl.Maybe.none(begun), F=fl.Maybe.none(initial.params))

    def init_rows(self, initial: fl.Weights, model: fl.Model, *, num_clients: int) -> dict[str, Any]:
        return {"version": torch.tensor(0)}  # of the F that a client has

    # ---- on a client

    @fl.on_client
    def local_update(self, client: fl.Client[Own], w: fl.Weights, told: Importance) -> tuple[Own, Upload]:
        F = told.otherwise(client.state.F.value)
        decomposed = client.round > self.z
        parts = self.together(client, self.parts(client, w), w.params, F, decomposed)
        own = fl.Maybe.where(decomposed, parts.select(lambda name: name not in w.params))
        shared = parts.select(lambda name: name in w.params or name in w.buffers)
        state = Own(parts=own, F=fl.Maybe(present=told.present | client.state.F.present, value=F))
        return state, (client.weigh(shared, "samples"), self.judged_loss(client, w))

    @fl.on_client
    def measured_update(self, client: fl.Client[Own], w: fl.Weights, told: Importance) -> tuple[Own, Measured]:
        state, upload = self.local_update(client, w, told)
        return state, (*upload, client.weigh(self.importance(client, w), "samples"))

    @fl.on_client
    def watch(self, client: fl.Client[Own], w: fl.Weights) -> tuple[Own, Annotated[fl.Weighted[Tensor], "control"]]:
        return client.state, self.judged_loss(client, w)

    def parts(self, client: fl.Client[Own], w: fl.Weights) -> fl.Weights:
        """W_S as received, with the client's r_k and W_k, or as they begin where it has none."""
        begun = decompose(client.model, w, *STARTS[self.decomposition])
        return w.merge(client.state.parts.otherwise(begun))

    def together(
        self, client: fl.Client[Own], start: fl.Weights, anchor: fl.Params, F: fl.Params, decomposed: Tensor
    ) -> fl.Weights:
        """Local training of all three parts, or where not `decomposed` of the shared one alone."""
        model, task_loss = client.model, client.loss

        def loss(
            parts: fl.Weights, batch: fl.Batch, anchor: fl.Params, F: fl.Params, decomposed: Tensor
        ) -> fl.BatchLoss:
            found = task_loss(effective(model, parts, decomposed), batch)
            if self.mu == 0:
                return found
            moved = parts.params.select(anchor.__contains__) - anchor
            return found + self.mu / 2 * (F * moved).dot(moved)  # (6)

        return self.train(client, start, anchor, F, decomposed, loss=loss)

    def importance(self, client: fl.Client[Own], w: fl.Weights) -> fl.Params:
        """Return the client's part of the sum in (5)."""
        if self.estimator == "client_grad_sq":
            g = fl.mean_gradient(client.model, client.task, w, client.train.whole())
            return g * g
        width = 1 if self.estimator == "per_sample" else self.local.batch_size
        return fisher(client.model, client.task, w, client.train.in_order(width))

    def judged_loss(self, client: fl.Client[Own], w: fl.Weights) -> fl.Weighted[Tensor]:
        """Return the loss, [], of the model that evaluates the client, without the pull, on all examples at once."""
        evaluated, task = self.personal(client, w), client.task
        loss = fl.mean_loss(client.model, task, evaluated, client.train.whole())
        if isinstance(task, Objective):
            loss = task.objective(loss, client.num_examples, evaluated.params)
        return client.weigh(loss.to(client.train.dtype), "samples")

    # ---- on the server

    def round(self, server: Server, cohort: fl.Cohort) -> Server:
        measures = self.mu > 0 and (bool(server.pending) or cohort.round in self.forced_rounds)

        def told(clients: Tensor) -> tuple[fl.Maybe[fl.Params]]:
            stale = cohort.rows("version", clients) < server.version
            return (fl.Maybe.where(stale, fl.tree.map_tree(lambda t: t.expand(len(clients), *t.shape), server.F)),)

        update = self.measured_update if measures else self.local_update
        replies = cohort.reduce(update, server.w, scatter=told)
        w, loss, *squares = replies.mean
        replies.cohort.keep("version", server.version.expand(len(replies.cohort.ids)))
        F = self.lam * server.F + squares[0] if measures else server.F  # (5)
        if measures:
            self.check_pull(F, cohort.round)
        if self.window_loss == "global_all_clients":
            seen = cohort.everyone.reduce(self.watch, w, at_least=0)
            loss = seen.mean if seen else loss
        window, plateau = server.window.push(loss, self.delta_mu, self.delta_sigma, self.window)
        mean, std = window.now
        cohort.note(window_mean=mean, window_std=std, plateau=plateau, measured=measures)
        return Server(
            w=w,
            F=F,
            version=server.version + measures,
            pending=plateau | (server.pending & (not measures)),
            window=window,
        )

    def check_pull(self, F: fl.Params, round: int) -> None:
        """Raise SettingError where the pull is stronger than a step of the next round can follow."""
        top, rate = max(float(t.max()) for t in fl.tree.leaves(F)), self.local.rate(round + 1)
        if isinstance(self.local.optimiser, fl.SGD) and rate * self.mu * top >= 2:
            raise fl.SettingError(
                f"APFL's pull is stable only with lr * mu * max F < 2, got {rate:g} * {self.mu:g} * {top:g} = "
                f"{rate * self.mu * top:g} after round {round + 1}: set mu below {2 / (rate * top):.3g}, or lower lr"
            )

    def personal(self, client: fl.Client[Own], sent: fl.Weights) -> fl.Weights:
        return effective(client.model, self.parts(client, sent), client.state.parts.present)

    def has_personal(self, state: Own) -> Tensor:
        return state.parts.present

    def global_weights(self, server: Server) -> fl.Weights:
        return server.w
