"""FedSAM: local steps of sharpness-aware minimisation, whose gradient is taken where the loss nearby is highest.

Qu, Li, Duan, Liu, Tang, Lu. *Generalized Federated Learning via Sharpness Aware Minimization.* ICML 2022.
https://arxiv.org/abs/2206.02618. Caldarola, Caputo, Ciccone. *Improving Generalization in Federated Learning by Seeking
Flat Minima.* ECCV 2022. https://arxiv.org/abs/2203.11834. The step is that of SAM (Foret et al., ICLR 2021).

    g   = grad L(w)
    w  <- w - lr grad L(w + rho g / ||g||)       on one batch; ||.|| over all trained parameters
    w  <- sum_k (n_k / n) w_k                    on the server, as `fedavg`

Momentum and weight decay act on the second gradient alone. Both passes have the same dropout masks and augmentation.
BatchNorm follows the first pass alone. `train_loss` is that of the second. A step costs two. Where examples are private
(`privacy="examples:..."`), each example has a worst point of its own.

Down: the model. Up: the model. Kept by the client: nothing. rho = 0 is FedAvg.

Differences from the papers: those of `fedavg`; Qu et al., as we read them, average without weights, which is
`aggregation = "uniform"`, and have a step of the server besides.

Differences from the code of Caldarola et al.: there BatchNorm follows both passes, and each has dropout masks of its
own; it reports the loss of the first pass. Its ASAM, SWA and mixup are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class FedSAM(fl.Averaging[fl.Weights]):
    """Take the gradient of a local step at the worst point nearby."""

    rho: Annotated[fl.NonNegative, fl.Grid(0.01, 0.05, 0.1, 0.5)] = 0.05
    """Distance of that point. Caldarola et al. have 0.5 in the script of their repository; 0.05 is SAM's own default,
    and the grid ours."""

    neutral = {"rho": 0}

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], sent: fl.Weights
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        task_loss = client.loss

        def loss(w: fl.Weights, batch: fl.Batch) -> fl.BatchLoss:
            g, _, buffers = fl.batch_gradient(task_loss, w, batch)  # a constant, and so is the way to the worst point
            worst = w.params + self.rho / (g.sq_norm().sqrt() + 1e-16) * g
            found = task_loss(fl.Weights(worst, w.buffers), batch)
            return fl.BatchLoss(found.value, found.logits, fl.Weights(w.params, buffers))

        return self.answer(client, self.train(client, self.received(client, sent), loss=loss))

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)
