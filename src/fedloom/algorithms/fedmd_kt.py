"""FedMD as KT-pFL's authors ported it: everybody learns the mean of all soft predictions.

After Li, Wang. *FedMD: Heterogenous Federated Learning via Model Distillation.* 2019. https://arxiv.org/abs/1910.03581;
presumably the FedMD of KT-pFL's comparison (Zhang et al., NeurIPS 2021), whose released code has it.

    server   p_n = (1/N) sum_m s_m, the same for all;  then as KT-pFL (6)

KT-pFL with C = 1/N throughout. Unlike FedMD (`fedmd`) probabilities are averaged and not logits, their divergence is
minimised, and there is no training on labelled public examples.

Down: the public examples' indices [P], with each exchange, and p [P, C]. Up: s_n [P, C]. Kept by the client: its model.
There is no value that gives FedAvg (nothing is averaged).
Differences from the authors' code: the order within a round, and the size of the distillation loss (theirs is divided
by the number of classes), are those of KT-pFL's paper; public examples are drawn without replacement, and BatchNorm
statistics are those of a client's own examples (theirs take in the public ones).
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
