"""Sim-pFL: KT-pFL's round in which clients learn from those that predict the same, by coefficients that are not learnt.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021, a
comparator of its experiments, as in their released code. https://arxiv.org/abs/2111.02801

    server   a[n, m] = cosine of s_n and s_m over all P x C numbers
             C[n, m] = (a[n, m] - min_j a[n, j]) / sum_i (a[n, i] - min_j a[n, j]);  then as `kt_pfl` (6)

The least similar client counts nothing. A row of equal cosines, of clients that all predict the same, is uniform.

Down: the public examples' indices [P], with each exchange, and p_n [P, C], one for each. Up: s_n [P, C]. Kept by the
client: its model. There is no value that gives FedAvg (nothing is averaged).

Differences from the authors' code: the order within a round, and the size of the distillation loss (theirs is divided
by the number of classes), are those of KT-pFL's paper; public examples are drawn without replacement, and BatchNorm
statistics are those of a client's own examples (theirs take in the public ones).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.algorithms.shared.transfer import Comparator, cosines


@dataclass(frozen=True, kw_only=True)
class SimPFL(Comparator):
    """See `Transfer` for the settings."""

    def coefficients(self, soft: Tensor) -> Tensor:
        return similar(cosines(soft))


def similar(a: Tensor) -> Tensor:
    """Return the coefficients of cosines `a` [N, N]: shares of what is above a row's least; else uniform."""
    above = a - a.min(1, keepdim=True).values
    total = above.sum(1, keepdim=True)
    return torch.where(total > 0, above / torch.where(total > 0, total, 1.0), 1.0 / len(a))
