"""TopK-pFL: KT-pFL's round in which each client learns from the half of them that predict nearest to the same.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021, a
comparator of its experiments, as in their released code. https://arxiv.org/abs/2111.02801

    server   a[n, m] = cosine of s_n and s_m over all P x C numbers
             C[n, m] = 1 / count for the m whose a[n, m] is above the N/2-th smallest of the row, itself among them,
             else 0;  then as `kt_pfl` (6)

Ties at the threshold leave fewer than N/2; a client above which nobody is learns from itself alone.

Down: the public examples' indices [P], with each exchange, and p_n [P, C], one for each. Up: s_n [P, C]. Kept by the
client: its model. There is no value that gives FedAvg (nothing is averaged).

Differences from the authors' code: those of `sim_pfl`; with partial participation N counts the clients that answered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.algorithms.shared.transfer import Comparator, cosines


@dataclass(frozen=True, kw_only=True)
class TopKPFL(Comparator):
    """See `Transfer` for the settings."""

    def coefficients(self, soft: Tensor) -> Tensor:
        return nearest(cosines(soft))


def nearest(a: Tensor) -> Tensor:
    """Return the coefficients of cosines `a` [N, N], alike for all above a row's N/2-th smallest; itself if none is."""
    n = len(a)
    threshold = a.sort(1).values[:, [max(n // 2, 1) - 1]]
    keep = a > threshold
    keep = torch.where(keep.any(1, keepdim=True), keep, torch.eye(n, dtype=torch.bool, device=a.device))
    return keep.to(a.dtype) / keep.sum(1, keepdim=True)
