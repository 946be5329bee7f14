"""Give the battery its networks, from 12 features to 3 classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES, CLASSES = 12, 3


class MLP(nn.Module):
    """Two layers with tanh: smooth, so that rounding is never amplified by a kink."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, width)
        self.head = nn.Linear(width, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """Input of the last layer."""
        return torch.tanh(self.hidden(x))

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs and outputs of the last stage, logits."""
        z = self.features(x)
        return x, z, self.head(z)

    def slim(self, before: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Return the last stage on the first of its inputs, to the first of its outputs."""
        x, n = before[:, : int(width * FEATURES)], int(width * len(self.hidden.bias))
        return x, torch.tanh(F.linear(x, self.hidden.weight[:n, : x.shape[1]], self.hidden.bias[:n]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


class Deep(MLP):
    """One layer more, before as many features."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.first = nn.Linear(FEATURES, FEATURES)
        self.hidden = nn.Linear(FEATURES, 8)
        self.head = nn.Linear(8, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """Input of the last layer."""
        return super().features(torch.tanh(self.first(x)))

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs and outputs of the last stage, logits."""
        z = self.features(x)
        return torch.tanh(self.first(x)), z, self.head(z)


class Convolutional(nn.Module):
    """The features as a line of 12 pixels. Means of 3 pixels of 2 channels are as many as an MLP's features, 8."""

    def __init__(self, channels: int = 3, pooled: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, channels, 3, padding=1)
        self.head = nn.Linear(channels * FEATURES // pooled, CLASSES)
        self.pooled = pooled

    def features(self, x: Tensor) -> Tensor:
        """Input of the last layer."""
        return self.flat(torch.tanh(self.conv(x[:, None])))

    def flat(self, z: Tensor) -> Tensor:
        """Return the maps as a vector."""
        return (z if self.pooled == 1 else F.avg_pool1d(z, self.pooled)).flatten(1)

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs and outputs of the last stage, logits."""
        z = torch.tanh(self.conv(x[:, None]))
        return x[:, None], z, self.head(self.flat(z))

    def slim(self, before: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Return the last stage on its one channel, to the first of its outputs."""
        n = max(1, int(width * self.conv.out_channels))
        return before, torch.tanh(self.conv(before)[:, :n])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


class Normalised(nn.Module):
    """Batch normalisation and dropout: what padding and stacking disturb if anything does."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(8, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """Input of the last layer."""
        return self.drop(torch.tanh(self.norm(self.hidden(x))))  # type: ignore[no-any-return]

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs and outputs of the last stage, logits."""
        z = self.features(x)
        return x, z, self.head(z)

    def slim(self, before: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Return the last stage on the first of its inputs, to the first of its outputs; statistics of the batch."""
        x, n = before[:, : int(width * FEATURES)], int(width * 8)
        z = F.linear(x, self.hidden.weight[:n, : x.shape[1]], self.hidden.bias[:n])
        z = F.batch_norm(z, None, None, self.norm.weight[:n], self.norm.bias[:n], training=True)
        return x, torch.tanh(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]
