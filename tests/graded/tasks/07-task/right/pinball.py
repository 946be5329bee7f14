from dataclasses import dataclass
from typing import ClassVar

import torch

import fedloom as fl


@dataclass(frozen=True)
class Pinball:
    q: float = 0.5
    targets: ClassVar[str] = "numbers"

    def __post_init__(self):
        if not 0 < self.q < 1:
            raise fl.SettingError(f"q is above 0 and below 1, got {self.q}")

    def columns(self, logits, y):
        y = y.reshape(len(y), -1)
        if y.shape != logits.shape:
            raise fl.SettingError(f"there is an output for each target, got {logits.shape[1]} for {y.shape[1]}")
        return y.to(logits.dtype)

    def each(self, logits, y):
        gap = self.columns(logits, y) - logits
        return torch.maximum(self.q * gap, (self.q - 1) * gap).mean(1)

    def covered(self, logits, y):
        return (self.columns(logits, y) <= logits).double().mean(1)

    def loss(self, logits, batch):
        return batch.mean(self.each(logits, batch.y))

    @property
    def measures(self):
        return (
            fl.Sum(name="pinball", title="pinball", meaning="Mean loss.", rows=self.each, better="low", unit=""),
            fl.Sum(name="coverage", title="coverage", meaning="Share of targets below.", rows=self.covered),
        )
