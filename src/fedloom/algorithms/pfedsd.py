"""pFedSD: personalised federated learning by self-knowledge distillation.

Jin, Bai, Yao, Dai, Gu, Yu, Sun. *Personalized Edge Intelligence via Federated Self-Knowledge Distillation.* IEEE TPDS
34(2), 2023, Algorithm 1, eq. 4 and 5.

    phi_k(w; v_k) = CE(w) + lam * T^2 * KL(q(v_k; T) || q(w; T))      v_k: the client's model after its last round

Training starts from the global model and is pulled towards the personal one. The model with which training ends becomes
v_k and is uploaded. Personal accuracy is that of v_k. Experiments: papers/docs/pfedsd.md.

A client that takes part for the first time has no v_k and no term: its update is that of FedAvg. One that never took
part is evaluated by the newest global model (`has_personal` is then false). One that is not selected keeps its v_k,
however old. One that fails, or whose response is lost, late or refused, keeps the v_k that it had, as if it had not
been selected: a state moves here when its response is accepted and not before. (A device of the paper's would keep the
new v_k though its upload was lost.) A stateless device gets v_k with the request and sends it back with its response.

The term stands on top of any algorithm that averages and evaluates clients by what it sends and they keep: `fedavg`,
`fedprox`, `fedntd`, `fedntd_mse`, `fedper`, `lg_fedavg`, and your own from `fl.Averaging` or `fl.FedAvg`; not
`per_fedavg` and `fedavg_ft`. `fl.self_distilled(algorithm)` makes a class with the settings of both. The teacher is the
whole model with which the client's last participation ended: of FedPer the base and the client's own layers. The class
may stand in a module of yours, which the command line knows as `module:Mine`:

    Mine = fl.self_distilled(fl.FedProx)  # Mine(mu=0.1, lam=0.5)
    fl.self_distilled(fl.FedPer)(personal_layers="last:1", lam=0.5, local=local)

Section 3.3.2 names other ways to transfer what v_k knows. With `transfer = "weights"` the term is a norm between
weights, over all that are trained:

    phi_k(w; v_k) = CE(w) + lam / 2 * ||w - v_k||^2

Where examples arrive (`data.arrives`), v_k teaches those that came after it; stored predictions do not exist for them,
and they have no term: why the paper keeps the past model and not its predictions.

Where an example has several labels, each is distilled as a distribution over yes and no, and their mean is the term.
Where targets are the next tokens of a sequence, the term is the mean over the places that count.

Down: the model. Up: the model. Kept by the client: v_k. lam = 0 trains the models of FedAvg with `aggregation =
"uniform"`. Its personal accuracy is then that of the stored local models (`fedavg_stored`), which is the honest control
for the method.

Differences from the paper: T^2 (its equation is damaged in our text; the authors' code has it).

Differences from the authors' code: the teacher is in evaluation mode; a client that never took part is evaluated by the
newest global model, not the initial one; a client whose training diverges keeps its v_k and sends nothing; BatchNorm
statistics are averaged (`buffers = "server"` keeps the server's, as they do).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.fedavg import FedAvg
from fedloom.core.averaging import KeepsModel, Kept
from fedloom.core.losses import Loss


@fl.state
class Noted(Kept[Any]):
    """Last model of a client, with its predictions on the client's training examples."""

    logits: Tensor  # [rows, C] by the examples' places; zeros for those that were not there


@dataclass(frozen=True, kw_only=True)
class SelfDistilled(KeepsModel):
    """Add the distillation of (4) to the local loss of an algorithm that averages (abstract, a mixin)."""

    lam: Annotated[fl.NonNegative, fl.Grid(0.1, 0.5, 1.0, 2.0)] = 1.0
    """Weight of the term, by default the authors'; the grid is ours, since theirs is lost. A large lam * T^2 slows
    early rounds, whose teachers are poor."""
    T: Annotated[fl.Positive, fl.Grid(1.0, 2.0, 3.0, 4.0)] = 1.0
    """Temperature of the distillation, by default the authors'; the grid is ours."""
    teacher_max_age: fl.WholeNumber | None = None
    """Age of v_k, in rounds, beyond which a client trains without the term; none: no limit. The v_k of the round before
    is 1 old, so 0 leaves the term out for good."""
    kd_warmup_rounds: fl.WholeNumber = 0
    """Rounds over which the weight grows from 0, in round 0, to `lam`; 0: none."""
    teacher_store: Literal["model", "soft_predictions"] = "model"
    """Teacher: v_k as a `model`, or the `soft_predictions`: a table of the logits that v_k gave to the client's
    training examples at the end of its training. The table saves the teacher's pass at the start of a round, and costs
    one at its end. v_k stays, since the client is evaluated by it. The table takes 4 bytes for each class and example
    of the largest client, at every client that took part. Both teach the same where inputs stay the same; with
    augmentation or drifting inputs `soft_predictions` is refused. Where examples arrive, those that v_k was not trained
    on have no entry, and the distillation is the mean over those that have one."""
    transfer: Literal["predictions", "weights"] = "predictions"
    """Teaching by v_k, through `predictions` (4) or by a norm between `weights`, lam / 2 * ||w - v_k||^2, to compare.
    The norm knows no temperature and no stored predictions."""

    table: ClassVar[tuple[int, int]]  # rows and columns of those predictions, of an instance that is `bind`
    neutral: ClassVar[Mapping[str, Any]] = fl.GlobalOnly(lam=0)  # v_k evaluates the client, as in `fedavg_stored`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transfer == "weights" and self.teacher_store == "soft_predictions":
            raise fl.SettingError(
                'transfer = "weights" pulls towards the past model itself, and teacher_store = "soft_predictions" '
                "stores what it says: leave one of both out"
            )

    @property
    def requires(self) -> fl.Requires:
        fewest = 2 if self.transfer == "predictions" else 1
        return super().requires | fl.Requires(targets=("classes", "labels", "tokens"), logits=fewest)

    def bind(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
        made = super().bind(federation, models)
        if self.teacher_store == "model":
            return made
        if not federation.train.has_classes and not federation.train.y.is_floating_point():
            raise fl.SettingError(
                "soft predictions are stored for an example, and of sequences they would be a vocabulary for each "
                'place: set teacher_store="model"'
            )
        if federation.train.augment is not None:
            raise fl.SettingError(
                "soft predictions are of inputs that stay what they are, and the training examples are augmented at "
                'random: set teacher_store="model", or leave augmentation out'
            )
        if federation.drift is not None and federation.drift.changes_features:
            raise fl.SettingError(
                "soft predictions are of inputs that stay what they are, and the examples drift by data.drift: set "
                'teacher_store="model"'
            )
        return made.with_context(table=(federation.largest, federation.num_classes))

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        if self.teacher_store == "soft_predictions" and model.by_batch:
            raise fl.SettingError(
                f"soft predictions do not depend on a batch, and those of {model.name} do (BatchNorm without running "
                'statistics): set teacher_store="model"'
            )
        return super().init(model, key, num_clients=num_clients)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> Kept[Any]:
        kept = super().init_client(initial, model, key)
        if self.teacher_store == "model":
            return kept
        like = next(iter(initial.params.values()))
        return Noted(inner=kept.inner, v=kept.v, made=kept.made, logits=like.new_zeros(self.table))

    def train(
        self,
        client: fl.Client[Kept[Any]],
        start: fl.Weights,
        *context: Any,
        loss: Loss | None = None,
        correct: Callable[..., Any] | None = None,
        batches: fl.Batches | None = None,
        only: str | None = None,
        optimiser: int = 0,
    ) -> fl.Weights:
        taught = self.taught(client, client.train if batches is None else batches)
        if self.transfer == "predictions" or self.lam == 0:
            return super().train(
                client, start, *context, loss=loss, correct=correct, batches=taught, only=only, optimiser=optimiser
            )
        own, lam = loss or client.loss, self.lam

        def pulled(w: fl.Weights, batch: fl.Batch, v: fl.Params, *context: Any) -> fl.BatchLoss:
            share = batch.share[0]  # the same for all: the client has a v_k or none
            return own(w, batch, *context) + share * lam / 2 * (w.params - v).sq_norm()

        corrected = correct and (lambda g, v, *context: correct(g, *context))
        v = client.state.v.value.params
        return super().train(
            client, start, v, *context, loss=pulled, correct=corrected, batches=taught, only=only, optimiser=optimiser
        )

    def taught(self, client: fl.Client[Kept[Any]], batches: fl.Batches) -> fl.Batches:
        """Batches with what the client's last model says, and how much that counts."""
        kept, rows = client.state, batches.examples.shape[0]
        if self.lam == 0:
            return batches
        if isinstance(kept, Noted):
            batches = batches.note("v", kept.logits[batches.places])
            if "since" in batches.notes:  # examples that came after v_k have no entry
                batches = batches.note("known", batches.notes["since"] <= kept.made)
        elif self.transfer == "predictions":
            batches = batches.annotate("v", client.model, kept.v.value)
        counts = kept.v.present
        if self.teacher_max_age is not None:
            counts = counts & (client.round - kept.made <= self.teacher_max_age)
        share = counts.to(batches.dtype)
        if self.kd_warmup_rounds:
            share = share * (client.round / self.kd_warmup_rounds).clamp(max=1.0).to(batches.dtype)
        return batches.note("share", share.expand(rows))

    def term(self, loss: fl.BatchLoss, batch: fl.Batch, start: fl.Weights) -> Tensor:
        other = super().term(loss, batch, start)
        if self.lam == 0 or self.transfer == "weights":
            return other
        if batch.v.shape != loss.logits.shape:
            raise fl.SettingError(
                f"a client's soft predictions have a column for each of the data's {self.table[1]} classes, and the "
                f'network makes {loss.logits.shape[1]} logits: give it as many, or set teacher_store="model"'
            )
        # Where there is no v_k, zeros stand for it, of which a normalised layer may make NaN; and 0 * NaN is NaN.
        v = torch.where(batch.share.reshape(-1, *[1] * (batch.v.ndim - 1)) > 0, batch.v, 0.0)
        student, teacher = loss.logits, v
        if batch.y.is_floating_point():  # each label is a distribution over yes and no
            student, teacher = (torch.stack([z, torch.zeros_like(z)], -1) for z in (student, teacher))
        apart = fl.distillation(student, teacher, self.T)
        if apart.ndim > 1 and not batch.y.is_floating_point():  # as the loss, the mean over the places that count
            there = (batch.y >= 0).to(apart.dtype)
            places = batch.mean(there.sum(1)).clamp(min=1 / (2 * len(there)))
            return other + self.lam * batch.mean(batch.share * (apart * there).sum(1)) / places
        each = batch.share * (apart if apart.ndim == 1 else apart.mean(1))
        if "known" in batch.notes:  # the mean over those that have an entry
            known = (batch.known & batch.mask).to(each.dtype)
            return other + self.lam * torch.where(known > 0, each, 0.0).sum() / known.sum().clamp(min=1)
        return other + self.lam * batch.mean(each)  # (4), (5)

    def answer(self, client: fl.Client[Kept[Any]], w_k: fl.Weights) -> tuple[Kept[Any], fl.Weighted[fl.Weights]]:
        kept, upload = super().answer(client, w_k)
        if self.teacher_store == "model":
            return kept, upload
        said, places = client.train.predict(client.model, w_k), client.train.places  # [n, C], n - n_k are padding
        real = (torch.arange(len(places), device=said.device) < client.num_examples)[:, None]
        logits = said.new_zeros(self.table[0], said.shape[1]).index_add(0, places, torch.where(real, said, 0.0))
        return Noted(inner=kept.inner, v=kept.v, made=kept.made, logits=logits), upload


@dataclass(frozen=True, kw_only=True)
class PFedSD(SelfDistilled, FedAvg):
    """Average models; each client distils its own last model. See `SelfDistilled` and `Averaging` for the settings."""

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: its number of `samples`, or `uniform`, as in Algorithm 1."""


@functools.cache
def self_distilled(algorithm: type[fl.Averaging[Any]]) -> type[Any]:
    """Return an algorithm that averages, with pFedSD's term in its loss and the settings of `SelfDistilled`.

    The teacher is the whole model with which the client's last participation ended: of FedPer the base and the client's
    own layers. `self_distilled(FedPer)(personal_layers="last:1", lam=0.5)`.

    Raises:
        SettingError: the class does not derive from `Averaging`, evaluates clients by a model made for evaluation, as
            Per-FedAvg does, or has a setting of the same name already.
    """
    if not issubclass(algorithm, fl.Averaging) or issubclass(algorithm, SelfDistilled):
        raise fl.SettingError(
            f"self_distilled adds its term to a class that derives from fl.Averaging and has it not yet, such as "
            f"FedProx, got {algorithm.__name__}"
        )
    if algorithm.personal not in (fl.Averaging.personal, KeepsModel.personal):
        raise fl.SettingError(
            f"self_distilled evaluates clients by the model that they trained last, and {algorithm.__name__} by one "
            "that its own personal makes: take an algorithm that evaluates by what it sends and keeps, such as FedProx"
        )
    both = sorted({f.name for f in fields(algorithm)} & {f.name for f in fields(SelfDistilled)})
    if both:
        raise fl.SettingError(
            f"self_distilled brings the settings {', '.join(both)}, which {algorithm.__name__} has with another "
            "meaning: rename those of a subclass"
        )
    said = {
        "__doc__": f"{algorithm.__name__} with pFedSD's term: see `self_distilled`.",
        "__module__": algorithm.__module__,
        "neutral": fl.GlobalOnly({**algorithm.neutral, "lam": 0}),
    }
    made = type(f"SelfDistilled{algorithm.__name__}", (SelfDistilled, algorithm), said)
    return dataclass(frozen=True, kw_only=True)(made)
