"""The probability simplex."""

from __future__ import annotations

import torch
from torch import Tensor


def project_simplex(c: Tensor) -> Tensor:
    """Each row of [..., N] projected onto the probability simplex (Duchi et al., ICML 2008)."""
    n = c.shape[-1]
    ordered = c.sort(dim=-1, descending=True).values
    excess = ordered.cumsum(-1) - 1.0
    count = torch.arange(1, n + 1, device=c.device, dtype=c.dtype)
    support = (ordered - excess / count > 0).sum(-1, keepdim=True)
    return (c - excess.gather(-1, support - 1) / support).clamp(min=0.0)
