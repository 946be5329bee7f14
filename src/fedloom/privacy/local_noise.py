"""Noise in each upload before it travels, and what else of a training a device keeps to itself."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedloom.core import random
from fedloom.core.batch import Batch, Schedule
from fedloom.core.client import Client
from fedloom.core.errors import SettingError
from fedloom.core.fold.steps import Descent, Step
from fedloom.core.local_training import Local
from fedloom.core.types import Params
from fedloom.engines.links import Encoder, Link, Question
from fedloom.privacy.draws import entropy, source

SENSITIVITY = 2.0  # clip norms: other examples turn an upload around


@dataclass(frozen=True, kw_only=True)
class LocalNoise(Encoder):
    """Uploads that are clipped, with noise: each set of named tensors is one vector, and one release.

    Attributes:
        clip: the L2 norm that it has at most.
        noise: standard deviation of the noise, as a multiple of `clip`.
        secret: whether draws come from the system's entropy, and not from keys that the server has too.
    """

    clip: float
    noise: float
    secret: bool = False
    entropy: str = field(init=False)  # for the manifest

    def __post_init__(self) -> None:
        object.__setattr__(self, "entropy", entropy(self.secret))

    def init(self, params: Params) -> Any:
        """Return a secret in the client's state: a server is told the state's digest, and could know states by it."""
        return _secret() if self.secret else ()

    def encode(self, client: Client[Any], values: Params, kept: Any) -> tuple[Params, Any]:
        if whole := [name for name, t in values.items() if not t.is_floating_point()]:
            raise SettingError(f"noise is for numbers with a fraction, and an upload has whole ones in {whole[0]!r}")
        clipped = self.clipped({name: t.double() for name, t in values.items()})
        sent = {
            name: (t + self.clip * self.noise * self._normal(client.key, site, t)).to(values[name].dtype)
            for site, (name, t) in enumerate(clipped.items())
        }
        return Params(sent), self.init(values)

    def clipped(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a vector in several tensors, of a norm up to `clip`; zeros where it is not finite."""
        square = sum((t.square().sum() for t in values.values()), torch.zeros((), dtype=torch.float64))
        norm = square.sqrt()
        share = torch.where(norm > self.clip, self.clip / norm, 1.0)
        fine = norm.isfinite()
        return {name: torch.where(fine, t * share, 0.0) for name, t in values.items()}

    def _normal(self, key: Tensor, site: int, like: Tensor) -> Tensor:
        if self.secret:
            drawn = source(True, 0, 0).normal(tuple(like.shape), torch.float64)
            return torch.from_numpy(drawn).to(like.device)
        return random.normal(key, site, like.shape).double()


def _secret() -> Tensor:
    return torch.frombuffer(bytearray(os.urandom(32)), dtype=torch.int64)


@dataclass(frozen=True)
class LossesStay:
    """Rule of gradients by which these are the usual ones, and a device says nothing of its losses."""

    def of(self, local: Local) -> LossesStay:
        """Return the rule of a training with this plan."""
        return self

    def held(self, trained: int) -> int:
        """Return the bytes that it holds beside."""
        return 0

    def instead(self, step: Step, batches: Schedule, context: tuple[Any, ...]) -> tuple[Step, tuple[Any, ...]]:
        """Return the step of a training, and its context, in the place of those given."""
        if not isinstance(step, Descent):
            return step, context
        return _Silent(step.loss, step.optimiser, step.correct, step.goes_on), context


class _Silent(Descent):
    def advance(
        self, work: Sequence[Tensor], spec: Any, batch: Batch, context: Any, dims: Any, unused: frozenset[int]
    ) -> None:
        super().advance(work, spec, batch, context, dims, unused)


class Releases(Link):
    """Uploads with noise, and how many of them a client is asked for in a round."""

    encoder: LocalNoise

    def __init__(self, encoder: LocalNoise) -> None:
        self.encoder = encoder
        self.most = 0  # sets of named tensors of a client in a round so far
        self.counted = math.inf  # those that epsilon is of
        self._sets = Counter[int]()
        self._asked: Collection[int] | None = None

    def begin(self, clients: Collection[int]) -> None:
        """Let a round begin that asks these clients alone."""
        self._asked = clients
        self._sets.clear()

    def end_round(self, clients: Collection[int]) -> None:
        self._sets.clear()

    def lost(self, question: Question) -> dict[int, str]:
        """Count uploads before they are asked for.

        Raises:
            SettingError: epsilon is of fewer.
        """
        method, encoders = question.call.method, question.engine.runtime.encoders
        self._sets.update(dict.fromkeys(question.clients, encoders.sets[method]))
        self.most = max([self.most, *self._sets.values()])
        if self._asked is not None and not {*question.clients} <= {*self._asked}:
            raise SettingError(
                f"local privacy counts the rounds of each client, and {method} asks others than those of the round: "
                "take another method, or leave privacy out"
            )
        if self.most > self.counted:
            raise SettingError(
                f"local privacy counts as many uploads of a client in a round as were tried before the run, "
                f"{self.counted:g}, and {method} asks for {self.most}: take another method, or leave privacy out"
            )
        return {}
