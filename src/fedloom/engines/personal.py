"""The model by which a client is evaluated, and what its examples say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import outside_training
from fedloom.core.batches import Batches
from fedloom.core.client import Client
from fedloom.core.fold import fold
from fedloom.core.model import Model
from fedloom.core.task import loss_of, per_weight, weight_of
from fedloom.core.task_measures import added, outputs_of, sums_of
from fedloom.core.types import Beside, Weights, replace, state
from fedloom.engines.message import EvaluationResult


def given(client: Client[Any], sent: Weights) -> Weights:
    """Return the model that a client is sent, in the place of `Algorithm.personal`."""
    return sent


def models_in(carry: Any, model: Model, lead: int = 0) -> list[Weights]:
    """Return the weights of a network within what was trained, but for what is `Beside` them.

    `lead`: how many axes the tensors have before their own.
    """
    nodes = tree.flatten(carry, is_leaf=lambda n: isinstance(n, Weights | Beside))[0]
    return [n for n in nodes if isinstance(n, Weights) and model.fits(tree.take(n, 0) if lead else n)]


@state
class Predictions:
    """Outputs of a model on N rows of one client, of which its scores are made. They never leave the process."""

    result: EvaluationResult  # without scores
    outputs: dict[str, Tensor]  # [N, ...] by measure
    y: Tensor  # [N, ...]
    mask: Tensor  # [N] bool


def personal(
    algorithm: Algorithm[Any, Any],
    method: Callable[..., Any],
    zero_sums: dict[str, Tensor],
    scores: tuple[str, ...],
    client: Client[Any],
    sent: Any,
    evaluated: Batches | None = None,
    train: Batches | None = None,
) -> Any:
    """Return the model by which a client is evaluated, which `method` makes.

    With `evaluated` rows, return an `EvaluationResult`.

    Where there are `scores`, return the `Predictions` of which they are made. Losses are measured where `train` rows
    are evaluated too.
    """
    weights = method(client, sent)
    if evaluated is None:
        return weights
    model, task, device = client.model, client.task, client.num_examples.device
    measures = tuple(zero_sums)

    def add(total: Any, batch: Any, logits: Tensor) -> Any:
        rows, n = sums_of(task, measures, logits, batch.y), batch.mask.sum()
        return {name: total[0][name] + added(each, batch.mask) for name, each in rows.items()}, total[1] + n

    def count(total: Any, batch: Any, weights: Any) -> Any:
        return add(total, batch, model(weights, batch.x))

    def measure(total: Any, batch: Any, weights: Any) -> Any:
        logits, batch = model(weights, batch.x), outside_training(batch)
        weight = weight_of(task, batch)
        loss = loss_of(task, logits, batch).double() * weight
        return add(total[0], batch, logits), total[1] + loss, total[2] + weight

    def predict(weights: Any, x: Tensor) -> Tensor:
        return model(weights, x)

    none = zero_sums, torch.zeros((), dtype=torch.int64, device=device)
    zero = torch.zeros((), dtype=torch.float64, device=device)

    def of(rows: Batches) -> Batches:
        return replace(rows, x=client.val.x, y=client.val.y)

    own = algorithm.has_personal(client.state).to(device)
    if train is None:
        (sums, n), loss, trained, train_loss = fold(count, none, of(evaluated), weights), zero, none[1], zero
    else:
        (sums, n), loss, weight = fold(measure, (none, zero, zero), of(evaluated), weights)
        (_, trained), train_loss, train_weight = fold(measure, (none, zero, zero), of(train), weights)
        # a mean over the targets that count, times the examples; of one target each that is the sum
        loss, train_loss = _by_example(loss, weight, n), _by_example(train_loss, train_weight, trained)
    result = EvaluationResult(
        sums=sums, scores={}, examples=n, own=own, loss=loss, trained=trained, train_loss=train_loss
    )
    if not scores:
        return result
    rows = of(evaluated)
    logits = rows.predict(predict, weights)
    there = torch.arange(len(rows.examples), device=device) < rows.num_examples
    return Predictions(result=result, outputs=outputs_of(task, scores, logits), y=rows.y[rows.examples], mask=there)


def _by_example(total: Tensor, weight: Tensor, count: Tensor) -> Tensor:
    """Return a weighted sum of losses as the mean loss times a number of examples; itself where each weighs 1."""
    return torch.where(weight == count, total, per_weight(total, weight) * count)
