"""Small federations of sequences, and networks whose answers at a place do not depend on padding behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.data.inputs import Tokens, next_tokens

VOCABULARY, LENGTH, CLIENTS = 12, 10, 5
SPANS = ((0, 100), (100, 130), (130, 160))


def sequences(length: int = LENGTH, count: int = 160, shortest: int = 3) -> Tensor:
    """Sequences in which a token tends to follow the one before it; lengths 3 to `LENGTH`, padded to `length`."""
    rng = np.random.default_rng(0)
    x = np.zeros((count, length), np.int64)
    for row in x:
        token, size = rng.integers(1, VOCABULARY), rng.integers(shortest, LENGTH + 1)
        for t in range(size):
            row[t] = token
            token = 1 + token % (VOCABULARY - 1) if rng.random() < 0.8 else rng.integers(1, VOCABULARY)
    return torch.from_numpy(x)


def federation(length: int = LENGTH, *, classes: bool = False, cut: bool = True, **settings: Any) -> fl.Federation:
    """Five clients of 20 sequences whose next tokens, or classes, are learnt."""
    x = sequences(length)
    y = x[:, 0] // 4 if classes else next_tokens(x)
    parts = [
        fl.Examples(x[a:b].int(), y[a:b], 3 if classes else VOCABULARY, Tokens(cut=cut), name="sequences")
        for a, b in SPANS
    ]
    lists = np.array_split(np.arange(100), CLIENTS)
    settings = {"val_fraction": 0.25, "public_labels": True} | settings
    return fl.federate(
        parts[0], fl.data.by_lists(lists), test=parts[1], public=parts[2], test_fraction=0.25, **settings
    )


class Attending(nn.Module):
    """A causal transformer of one block; `classes`: it answers once, by the mean over tokens."""

    def __init__(self, classes: int | None = None, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY if classes is None else classes)
        self.classes = classes

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        scores = self.query(h) @ self.key(h).transpose(1, 2) * h.shape[-1] ** -0.5
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=h.device).tril()
        h = h + scores.masked_fill(~causal, -torch.inf).softmax(-1) @ self.value(h)
        if self.classes is not None:
            real = (tokens != 0).to(h.dtype)[..., None]
            h = (h * real).sum(1) / real.sum(1)
        return self.head(self.norm(h))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM; its states are those before padding."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])  # type: ignore[no-any-return]


def classifier() -> nn.Module:
    return Attending(3)


LOCAL = fl.Local(optimiser=fl.SGD(lr=0.5), batch_size=8, epochs=4)
