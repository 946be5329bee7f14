"""LDAM: a margin for each class, the wider the fewer examples of it the client has.

Cao, Wei, Gaidon, Arechiga, Ma. *Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss.* NeurIPS 2019.
https://arxiv.org/abs/1906.07413. DENSE (Zhang et al., NeurIPS 2022) trains clients with it in its appendix.

    Delta_j = c n_j^(-1/4),  c such that max_j Delta_j = max_m        n_j: how many examples of class j the client has
    loss(x, y) = CE(s (z(x) - Delta_y e_y), y)                        z: cosines; e_y: 1 at the true class
    w_j = (1 - beta) / (1 - beta^n_j), scaled to a sum of C            deferred reweighting (DRW): loss(x, y) counts w_y

It is a task, so every algorithm that trains locally trains with it, DENSE among them: `fl.run(..., task=LDAM())`, or
`--task ldam`. The network's logits are s z already (`fedloom.models.CosineHead`, for example of `dense_cnn2_cosine`):
so what a server makes of them, such as the mean of an ensemble's logits, sees distributions that are not flat.

The margins are each client's own. Its label counts are known where its batches are made; there `notes` gives each
training example the margin and the weight of its class, and the loss reads them beside the batch, `batch.margin`. So
K clients of a stack have K margins, and no tensor is captured. Of 5, 1 and 0 examples of three classes, the margins are
0.33, 0.5 and 0: a class that the client does not have has neither margin nor weight (the authors' functions divide by
zero there).

Test and public examples have no margins: their loss is the cross-entropy of the logits. An evaluation of training
examples, such as the mean loss by which a client weighs its model, is at no time of a training: DRW with a share above
0 weighs no class there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.choices import Positive, check_choices
from fedloom.tasks import ClassTask


def margins(counts: Tensor, max_m: float = 0.5) -> Tensor:
    """Delta, [C] float64, of classes with so many examples [C]; 0 where there are none."""
    present = counts > 0
    widths = torch.where(present, counts.double().clamp(min=1) ** -0.25, 0.0)
    return widths * (max_m / widths.max().clamp(min=torch.finfo(torch.float64).tiny))


def class_weights(counts: Tensor, beta: float = 0.9999) -> Tensor:
    """w, [C] float64, of classes with so many examples [C], 0 where there are none; their sum is C."""
    w = torch.where(counts > 0, (1 - beta) / (1 - beta ** counts.double().clamp(min=1)), 0.0)
    return w * (len(counts) / w.sum().clamp(min=torch.finfo(torch.float64).tiny))


@dataclass(frozen=True)
class LDAM(ClassTask):
    """Cross-entropy with margins by the client's label counts; top-1 accuracy.

    `max_m`: the widest margin, in units of the cosine. `s`: the scale of the network's `CosineHead`, by which margins
    are scaled as its cosines are. `drw`: the share of a round's local training after which classes are weighted, 0.8
    for epochs 160 to 200; None: never. `beta`: of these weights.
    """

    max_m: Positive = 0.5
    s: Positive = 30.0
    drw: Annotated[float, Ge(0), Lt(1)] | None = None
    beta: Annotated[float, Gt(0), Lt(1)] = 0.9999

    def __post_init__(self) -> None:
        check_choices(self)

    @property
    def paced_by(self) -> str | None:
        """Setting that paces the loss: weights begin at a share of the round's training."""
        return None if self.drw is None else "drw"

    def notes(self, y: Tensor) -> dict[str, Tensor]:
        """Return the margin and the weight of each training example of a client, [n].

        Args:
            y: the labels of all of them, [n].
        """
        counts = torch.bincount(y, minlength=1)
        told = {"margin": margins(counts, self.max_m)[y]}
        return told if self.drw is None else {**told, "class_weight": class_weights(counts, self.beta)[y]}

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy with margins over the real rows of a batch, [].

        Args:
            logits: outputs of the network, [B, C], scaled cosines.
            batch: the examples, with their targets and the number of real rows.
        """
        if "margin" not in batch.notes:
            return batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))
        true = batch.y[:, None] == torch.arange(logits.shape[-1], device=logits.device)
        each = F.cross_entropy(logits - self.s * batch.margin[:, None] * true, batch.y, reduction="none")
        if self.drw is None:
            return batch.mean(each)
        weight = self.example_weights(batch)
        return batch.mean(weight * each) / batch.mean(weight)

    def example_weights(self, batch: Batch) -> Tensor:
        """Return the weight of each example in the mean loss, [B].

        Args:
            batch: the examples, with how much of the training lies before them.
        """
        if self.drw is None or "class_weight" not in batch.notes:
            return torch.ones_like(batch.mask, dtype=torch.float64)
        return torch.where(batch.progress < self.drw, 1.0, batch.class_weight)
