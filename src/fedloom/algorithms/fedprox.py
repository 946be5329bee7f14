"""FedProx: a proximal term that holds the local model near the one received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. *Federated Optimization in Heterogeneous Networks.* MLSys 2020.
https://arxiv.org/abs/1812.06127, eq. 2.

    L = CE(w) + mu / 2 * ||w - w_received||^2      over all trained parameters

Slow clients (`drop_percent`) do 1 to E - 1 epochs. FedProx averages what they send. The paper's FedAvg under stragglers
does not wait for them: mu = 0 with `stragglers = "dropped"`. Its FedProx without the term is mu = 0 with `stragglers =
"partial"`. The same seed draws the same stragglers for all of these, as in the paper's comparison. A client that fails
is no straggler: it sends nothing.

Down: the model; to each client its number of epochs, where some are slow. Up: the model. Kept by the client: nothing.
mu = 0 is FedAvg.

Differences from the paper: the local solver is the run's (momentum included, as in the comparisons of FedNTD), not
plain gradient descent; a straggler does at most E - 1 epochs, as in the authors' code (the paper: E). `sampler =
"by_size"` with `aggregation = "uniform"` is the sampling of the paper's analysis.

Differences from the authors' code: one client at least is not slow.

Differences from the FedNTD authors' code: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Lt
from torch import Tensor

import fedloom as fl
from fedloom.core.random import generator


@dataclass(frozen=True, kw_only=True)
class FedProx(fl.Averaging[fl.Weights]):
    """Hold the local model near the received one by a proximal term."""

    mu: Annotated[fl.NonNegative, fl.Grid(0.001, 0.01, 0.1, 1.0)] = 0.1
    """Weight of the proximal term. 0.1 is in Table 5 of FedNTD; its configuration file says 1.0."""
    drop_percent: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of each cohort that is slow: 0.9 is 90 %. A slow client does 1 to E - 1 epochs, drawn by the seed in each
    round, so `local.epochs` must be 2 or more. Where `local.steps` is given, it does the same share of those steps."""
    stragglers: Literal["partial", "dropped"] = "partial"
    """Treatment of slow clients. `partial`: the server averages what they send. `dropped`: the server does not select
    them. The same clients are slow under both."""

    neutral: ClassVar[Mapping[str, Any]] = {"mu": 0, "drop_percent": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop_percent and self.local.epochs < 2:
            raise fl.SettingError(
                f"a straggler does fewer epochs than others, of which there must be two, got local.epochs = "
                f"{self.local.epochs}: set local.epochs to 2 or more, or drop_percent=0"
            )

    @property
    def paced_by(self) -> str | None:
        """Setting that paces the loss: a straggler's share is one of all epochs of the round."""
        return "drop_percent" if self.drop_percent else None

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], sent: fl.Weights, epochs: Tensor | None = None
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        task_loss, received, batches = client.loss, self.received(client, sent), client.train
        if epochs is not None:
            batches = batches.first((epochs * batches.num_steps // self.local.epochs).clamp(min=1))

        def loss(w: fl.Weights, batch: fl.Batch, received: fl.Weights) -> fl.BatchLoss:
            return task_loss(w, batch) + self.mu / 2 * (w.params - received.params).sq_norm()  # (2)

        w_k = self.train(client, received, received, loss=loss, batches=batches)
        return self.answer(client, w_k)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        each: tuple[Tensor, ...] = ()
        if self.drop_percent:
            epochs = self.epochs(cohort)
            if self.stragglers == "partial":
                each = (epochs,)
            else:
                cohort = cohort.only(cohort.ids[epochs == self.local.epochs])
        return w.merge(cohort.reduce(self.local_update, self.down(w), scatter=each).mean)

    def epochs(self, cohort: fl.Cohort) -> Tensor:
        """Return the number of epochs of each client, [K] int64."""
        draw, (K,) = generator(cohort.key("stragglers")), cohort.ids.shape
        whole = max(1, round(K * (1 - self.drop_percent)))
        epochs = draw.integers(1, max(2, self.local.epochs), size=K)
        epochs[draw.permutation(K)[:whole]] = self.local.epochs
        return torch.from_numpy(epochs).to(cohort.ids.device)
