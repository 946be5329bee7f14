"""Small federations whose targets are no classes, and the networks for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import fedloom as fl

FEATURES, TARGETS, CLIENTS = 12, 3, 5


def federation(kind: str, **settings: Any) -> fl.Federation:
    """Five clients of 24 examples with three numbers each, or three labels, that follow from what they are given."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, FEATURES)).astype(np.float32)
    y = (5 + 3 * x @ rng.normal(size=(FEATURES, TARGETS)) + rng.normal(size=(200, TARGETS))).astype(np.float32)
    if kind == "labels":
        y = (y > 5).astype(np.float32)
    examples = [fl.Examples(torch.from_numpy(x[a:b]), torch.from_numpy(y[a:b]), TARGETS) for a, b in SPANS]
    lists = np.array_split(np.arange(120), CLIENTS)
    settings = {"val_fraction": 0.25, "public_labels": True} | settings
    return fl.federate(
        examples[0], fl.data.by_lists(lists), test=examples[1], public=examples[2], test_fraction=0.25, **settings
    )


SPANS = ((0, 120), (120, 160), (160, 200))
TASKS: dict[str, Any] = {"numbers": fl.Regression(), "labels": fl.MultiLabel()}
LOCAL = fl.Local(optimiser=fl.SGD(lr=0.1), batch_size=8, epochs=5)


def linear() -> nn.Module:
    return nn.Linear(FEATURES, TARGETS)
