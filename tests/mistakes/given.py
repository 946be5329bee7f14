"""What examples of mistakes begin with. A page shows of it what an example uses."""
# ruff: noqa: F401  # examples use what is imported

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedloom as fl

x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
y = np.arange(24) % 2
train = fl.from_arrays(x, y)
clients = fl.federate(train, fl.iid(y, 4, seed=0))
with_test = fl.federate(train, fl.iid(y, 4, seed=0), test=train)
settings = fl.RunSettings(rounds=1, cohort_size=2)
pairs = TensorDataset(torch.tensor(x), torch.tensor(y))
table = pd.DataFrame({"age": [30.0, None, 50.0], "town": ["Oslo", "Rome", "Rome"], "kind": ["a", "b", "a"]})


class Lookup(nn.Module):
    """Looks up the four ids of an example in a table."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(300, 3), nn.Linear(12, 2)

    def forward(self, x):
        return self.out(self.table(x.long()).flatten(1))
