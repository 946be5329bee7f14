"""FedMD as KT-pFL's authors ported it: all clients learn the mean of all soft predictions.

After Li, Wang. *FedMD: Heterogenous Federated Learning via Model Distillation.* 2019. https://arxiv.org/abs/1910.03581;
presumably the FedMD of KT-pFL's comparison (Zhang et al., NeurIPS 2021), whose released code has it.

    server   p_n = (1/N) sum_m s_m, the same for all;  then as `kt_pfl` (6)

It is `kt_pfl` with C = 1/N throughout. Unlike `fedmd`, it averages probabilities and not logits, minimises their
divergence, and has no phase 0: no training on labelled public examples.

Down: the public examples' indices [P], with each exchange, and p [P, C]. Up: s_n [P, C]. Kept by the client: its model.
There is no value that gives FedAvg (nothing is averaged).

Differences from the authors' code: those of `sim_pfl`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.algorithms.shared.transfer import Comparator


@dataclass(frozen=True, kw_only=True)
class FedMDKT(Comparator):
    """See `Transfer` for the settings."""

    def coefficients(self, soft: Tensor) -> Tensor:
        return soft.new_ones(len(soft), len(soft)) / len(soft)
