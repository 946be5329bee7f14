"""Clients of any architecture that teach each other by their predictions on public examples.

KT-pFL, and those that are its round with other coefficients: who learns from whom is the method.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import Batch
from fedloom.core.choices import Count, Positive
from fedloom.core.client import Client, on_client
from fedloom.core.cohort import Cohort, Replies
from fedloom.core.errors import SettingError
from fedloom.core.fold import fold, minimise
from fedloom.core.local_training import Digest
from fedloom.core.losses import Loss, soft_prediction, soft_target_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.random import fold_in
from fedloom.core.requires import Requires
from fedloom.core.types import Weights, replace

V = TypeVar("V")
PUBLIC = 1  # folded into a client's key for batches of public examples: dropout there is not that of its own


@dataclass(frozen=True, kw_only=True)
class Transfer(Algorithm[V, Weights]):
    """Let clients teach each other; a client keeps its model, and is evaluated by it (abstract).

    A client trains on its own examples and sends s_n = softmax(z_n / tau) on P public ones (`collect`); the server
    mixes these for each, p_n = sum_m C[n, m] s_m, and the client distils p_n (`teach`).
    """

    distill: Digest = field(default_factory=lambda: Digest(epochs=1, batch_size=256, optimiser=SGD(lr=0.02)))
    """Passes, batch size and optimiser on public examples, of eq. 6; `lam` is absorbed in its learning rate."""
    num_public: Count = 3000
    """Public examples of a round, P, drawn without replacement; all where there are fewer. 3,000 is the paper's number.
    """
    tau: Positive = 1.0
    """Temperature of the predictions; the default is ours: sources are silent. A large one leaves C uniform."""

    requires = Requires(mixed=True, public=True, targets=("classes",), logits=2)

    def init_client(self, initial: Weights, model: Model, key: int) -> Weights:
        return model.init(key)

    @on_client
    def local_update(
        self, client: Client[Weights], public: Annotated[Tensor, "control"]
    ) -> tuple[Weights, Annotated[Tensor, "predictions"]]:
        """E epochs on the client's own examples, and then its soft predictions [P, C]."""
        weights = self.train(client, client.state, loss=client.loss)
        batches = client.public.rows(public, self.distill.batch_size)
        return weights, batches.predict(soft_prediction(client.model, self.tau), weights)

    @on_client
    def digest(
        self,
        client: Client[Weights],
        public: Annotated[Tensor, "control"],
        target: Annotated[Tensor, "predictions"],
    ) -> tuple[Weights, tuple[()]]:
        """Distillation: w <- w - eta2 grad KL(p_n || s(w)), over the public examples in the order they are sent.

        Running statistics of BatchNorm are then those of the client's own examples under the new weights: the model
        is evaluated on such examples, and distillation moves weights away from any statistics measured before.
        """
        loss = soft_target_loss(client.model, self.tau)
        taught = learnt(client, client.state, loss, public, target, self.distill)
        return with_own_statistics(client, replace(taught, buffers=client.state.buffers)), ()

    def collect(self, cohort: Cohort) -> tuple[Tensor, Replies[Tensor]]:
        """Public examples of this round [P], and what the clients say of them after their training, [P, C] each."""
        public = drawn(cohort, self.num_public)
        return public, cohort.gather(self.local_update, public)

    def teach(self, replies: Replies[Tensor], public: Tensor, c: Tensor) -> None:
        """Let the clients that answered learn their mixtures, by `c` [K, K]."""
        replies.cohort.gather(self.digest, public, scatter=(mixture(c, replies.value),), at_least=0)

    def personal(self, client: Client[Weights], sent: tuple[()]) -> Weights:
        return client.state


@dataclass(frozen=True, kw_only=True)
class Comparator(Transfer[tuple[()]]):
    """Mix predictions by coefficients that follow from them and are not learnt (abstract)."""

    @abstractmethod
    def coefficients(self, soft: Tensor) -> Tensor:
        """Return who learns from whom, [K, K], row = student, from the soft predictions `soft` [K, P, C]."""

    def init(self, model: Mapping[str, Model], key: int, *, num_clients: int) -> tuple[()]:
        return ()

    def round(self, server: tuple[()], cohort: Cohort) -> tuple[()]:
        public, replies = self.collect(cohort)
        self.teach(replies, public, self.coefficients(replies.value))
        return server


def drawn(cohort: Cohort, count: int) -> Tensor:
    """`count` public examples of this round without replacement, all where there are fewer, [P]."""
    rng = torch.Generator().manual_seed(cohort.key("public"))
    order = torch.randperm(cohort.num_public, generator=rng)
    return order[:count].to(cohort.public.batches.x.device)


def learnt(client: Client[Any], weights: Weights, loss: Loss, public: Tensor, target: Tensor, how: Digest) -> Weights:
    """Weights that have learnt `batch.target`, rows of `target` [P, C], of the public examples `public` [P].

    The epochs are one run of the optimiser, whose momentum and moments are at rest before the first alone.
    """
    once = client.public.rows(public, how.batch_size).note("target", target)
    orders = torch.arange(len(public), device=public.device).expand(how.epochs, -1)  # as they were sent
    batches = once.passes(orders, fold_in(client.key, PUBLIC))
    return minimise(loss, weights, batches, how.optimiser, lr=torch.full_like(client.lr, how.optimiser.lr))


def with_own_statistics(client: Client[Any], weights: Weights) -> Weights:
    """Return the weights with running statistics of the client's training batches, E epochs, without a step."""
    if not weights.buffers:
        return weights
    model = client.model

    def seen(weights: Weights, batch: Batch) -> Weights:
        return replace(weights, buffers=model.train(weights, batch)[1])

    return fold(seen, weights, client.train)


def mixture(c: Tensor, soft: Tensor) -> Tensor:
    """p_n = sum_m C[n, m] s_m. `c`: [N, N], `soft`: [N, P, C] -> [N, P, C]."""
    return torch.einsum("nm,mpc->npc", c, soft)


def cosines(soft: Tensor) -> Tensor:
    """Cosine of what each two clients say of all public examples, [N, N]; 1 with itself. `soft`: [N, P, C]."""
    flat = F.normalize(soft.flatten(1), dim=1)
    return (flat @ flat.T).fill_diagonal_(1.0)


def project_simplex(c: Tensor) -> Tensor:
    """Each row of [..., N] projected onto the probability simplex (Duchi et al., ICML 2008)."""
    n = c.shape[-1]
    ordered = c.sort(dim=-1, descending=True).values
    excess = ordered.cumsum(-1) - 1.0
    count = torch.arange(1, n + 1, device=c.device, dtype=c.dtype)
    support = (ordered - excess / count > 0).sum(-1, keepdim=True)
    return (c - excess.gather(-1, support - 1) / support).clamp(min=0.0)


def check_pull(eta3: float, rho: float) -> None:
    """Raise SettingError where steps of eq. 7 of KT-pFL carry C away from 1/N, though rho pulls it there."""
    if eta3 * rho >= 1:
        raise SettingError(
            f"KT-pFL's coefficients are stable only with eta3 * rho < 1, got {eta3:g} * {rho:g} = {eta3 * rho:g}: set "
            f"eta3 below {1 / rho:.3g} (at {0.5 / rho:.3g} the pull reaches 1 / N in one step), or lower rho"
        )
