"""Networks to train: plain modules, each a `body` for the features and a linear `classifier`."""

from __future__ import annotations

from fedloom.models.networks import MLP, FeatureClassifier, FedNTDCNN, LeNet, LogisticRegression, SmallConvNet
from fedloom.models.registry import MODELS, build

__all__ = [
    "MLP",
    "MODELS",
    "FeatureClassifier",
    "FedNTDCNN",
    "LeNet",
    "LogisticRegression",
    "SmallConvNet",
    "build",
]
