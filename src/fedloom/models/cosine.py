"""Logits that are cosines, as losses with margins want them (LDAM: Cao et al., NeurIPS 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.models.networks import FeatureClassifier


class CosineHead(nn.Linear):
    """A last layer whose logits are s times the cosine between features and the weights of each class.

    The cosine alone lies in [-1, 1]: softmax would be nearly flat whatever the network says, and so would that of an
    ensemble's mean. So the scale belongs to the network, and a loss, an ensemble or an argmax takes its logits as those
    of any other. Weights begin in directions drawn uniformly from a cube, of length 1.

    Args:
        feature_size: F, of the input (B, F).
        num_classes: C.
        s: the scale, > 0.

    Raises:
        ValueError: the scale is not positive.
    """

    def __init__(self, feature_size: int, num_classes: int, s: float = 30.0) -> None:
        if s <= 0:
            raise ValueError(f"the scale s of cosines must be > 0, got {s}: LDAM's is 30")
        super().__init__(feature_size, num_classes, bias=False)
        self.s = s

    def reset_parameters(self) -> None:
        """Draw the directions."""
        with torch.no_grad():
            self.weight.copy_(F.normalize(self.weight.uniform_(-1.0, 1.0), dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (B, C)."""
        return self.s * F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


def with_cosines(network: FeatureClassifier, s: float = 30.0) -> FeatureClassifier:
    """Replace the classifier by a new `CosineHead` of the same size, and return the network itself."""
    network.classifier = CosineHead(network.classifier.in_features, network.classifier.out_features, s)
    return network
