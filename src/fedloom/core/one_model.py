"""What algorithms share whose clients all end up with the server's model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Client
from fedloom.core.types import Weights

V = TypeVar("V")
S = TypeVar("S")


class OneModel(Algorithm[V, S]):
    """Abstract: every client is judged by the global model, whatever else server and clients keep."""

    @property
    def personalises(self) -> bool:
        return False

    @abstractmethod
    def global_weights(self, server: V) -> Weights: ...

    def personal(self, server: V, client: Client[Any]) -> Weights:
        return self.global_weights(server)
