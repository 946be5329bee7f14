from dataclasses import dataclass
from typing import Annotated

import torch

import fedloom as fl

Beta = Annotated[float, fl.Ge(0), fl.Lt(1)]


@dataclass(frozen=True, kw_only=True)
class Lion(fl.Optimiser):
    lr: fl.Positive = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    weight_decay: fl.NonNegative = 0.0

    def kept(self, p):
        return (torch.zeros_like(p),)

    def move_(self, p, g, kept, lr, steps):
        (m,), (b1, b2) = kept, self.betas
        p.sub_(lr * (torch.lerp(g, m, b1).sign() + self.weight_decay * p))
        m.lerp_(g, 1 - b2)
