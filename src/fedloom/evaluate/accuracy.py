"""Evaluate a model on examples: its task's measures, row by row and in all, and accuracy by class."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedloom.core import tree
from fedloom.core.batch import Padded, cut_length, of_places, probe
from fedloom.core.layout import by_pixels
from fedloom.core.model import Model
from fedloom.core.network_makers import own_defaults
from fedloom.core.task import Task, loss_of, per_weight, weight_of
from fedloom.core.task_measures import (
    SILENT,
    Score,
    added,
    measures_of,
    outputs_of,
    scores_of,
    sums_of,
    values_of_sums,
)
from fedloom.core.types import Weights
from fedloom.data import Examples
from fedloom.data.inputs import Inputs, Tokens, counts_padding

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassCounts:
    """Right answers and examples of each class, and the mean loss.

    `silent`: on how many examples the model says nothing; where there is one, no accuracy is defined.
    """

    right: Ints  # [C]
    total: Ints  # [C]
    loss: float
    silent: int = 0

    @property
    def accuracy(self) -> float:
        """The share of all examples that the model gets right (top-1); NaN where it says nothing on one."""
        return math.nan if self.silent else float(self.right.sum() / self.total.sum())

    @property
    def per_class(self) -> Floats:
        """The share of each class that the model gets right, [C]; NaN for a class without examples.

        All are NaN where the model says nothing on an example.
        """
        with np.errstate(invalid="ignore"):
            return self.right / np.where((self.total > 0) & (self.silent == 0), self.total, np.nan)


@dataclass(frozen=True)
class RowResults:
    """Results of one model on N examples."""

    sums: dict[str, Tensor]  # [N, ...] by measure: what each example adds
    outputs: dict[str, Tensor]  # [N, ...] by measure: what a score needs of each example
    y: Tensor  # [N, ...]
    loss: float  # mean

    def part(self, start: int, stop: int) -> RowResults:
        """Return the results of the rows from `start` up to before `stop`; the loss is that of all."""
        return self._cut(slice(start, stop))

    def select(self, rows: Ints) -> RowResults:
        """Return the results of some rows, in that order; the loss is that of all."""
        return self._cut(torch.from_numpy(rows))

    def _cut(self, rows: slice | Tensor) -> RowResults:
        def of(table: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: each[rows] for name, each in table.items()}

        return RowResults(of(self.sums), of(self.outputs), self.y[rows], self.loss)

    @property
    def totals(self) -> dict[str, Tensor]:
        """Sums over all rows, by measure."""
        return {name: added(each) for name, each in self.sums.items()}

    def measured(self, task: Task) -> dict[str, float]:
        """Return the task's measures over all rows; NaN where one is undefined."""
        return measured([self], task)[0]


def measured(results: Sequence[RowResults], task: Task) -> list[dict[str, float]]:
    """Return the task's measures of each of several sets of rows, [K]; the scores of all are one computation."""
    scored: list[dict[str, Tensor]] = [{} for _ in results]
    if results[0].outputs:
        outputs = {n: pad_sequence([each.outputs[n] for each in results], True) for n in results[0].outputs}
        y = pad_sequence([each.y for each in results], True)
        real = torch.arange(y.shape[1]) < torch.tensor([[len(each.y)] for each in results])
        for name, scores in scores_of(task, outputs, y, real).items():
            for values, score in zip(scored, scores, strict=True):
                values[name] = score
    return [values_of_sums(task, r.totals, len(r.y), found) for r, found in zip(results, scored, strict=True)]


def classify(model: Model, weights: Weights, task: Task, examples: Examples) -> ClassCounts:
    """Evaluate a model on examples, in evaluation mode, on the device and in the dtype of its weights.

    Raises:
        ValueError: there are no examples, or their targets are floating point numbers, which have no classes.
    """
    if not examples.has_classes:
        shape = tuple(examples.y.shape)
        raise ValueError(f"accuracy per class needs int64 labels, got targets of type {examples.y.dtype} {shape}")
    return by_class(evaluate_rows(model, weights, task, ("accuracy",), examples), examples.num_classes)


def by_class(found: RowResults, num_classes: int) -> ClassCounts:
    """Return the right answers of each class."""
    y, right = found.y.numpy().astype(np.int64), found.sums["accuracy"].numpy()
    return ClassCounts(
        right=np.bincount(y[right], minlength=num_classes).astype(np.int64),
        total=np.bincount(y, minlength=num_classes).astype(np.int64),
        loss=found.loss,
        silent=int(found.sums[SILENT].sum()),
    )


def rows_right(model: Model, weights: Weights, task: Task, examples: Examples) -> npt.NDArray[np.bool_]:
    """Return which examples a model gets right, [N]; of those on which it says nothing, none.

    Raises:
        ValueError: there are no examples.
    """
    return np.asarray(evaluate_rows(model, weights, task, ("accuracy",), examples).sums["accuracy"])


def rate_rows(
    predict: Callable[[Tensor], Tensor],
    task: Task,
    measure: str,
    examples: Examples,
    device: torch.device,
    dtype: torch.dtype,
) -> float:
    """Return a measure on all examples of a function of inputs [B, ...] to logits [B, ...].

    It evaluates 500 examples at a time.
    """
    return _pass(predict, examples.at_once(500), device, dtype, task, (measure,), examples).measured(task)[measure]


def in_local(share: Floats, per_class: Floats) -> Floats:
    """Return the accuracy on a client's own class distribution: sum_c p_c a_c (FedNTD, eq. 6).

    Classes without test examples are left out of the mean; NaN for a client that has no other classes.

    Args:
        share: class distributions p of clients, [..., C].
        per_class: accuracies a, [C]; NaN where a class has no test examples.

    Returns:
        [...].
    """
    measured = np.isfinite(per_class)
    weight = share[..., measured]
    total = weight.sum(-1)
    return np.asarray((weight * per_class[measured]).sum(-1) / np.where(total > 0, total, np.nan))


def out_local(share: Floats, per_class: Floats) -> Floats:
    """Return the accuracy on the complement distribution (1 - p_c) / (C - 1) (FedNTD, eq. 7).

    Arguments as of `in_local`.
    """
    return in_local(1.0 - share, per_class)  # which divides by the sum, C - 1


def evaluate_rows(
    model: Model, weights: Weights, task: Task, measures: Sequence[str], examples: Examples
) -> RowResults:
    """Evaluate a model on examples, in evaluation mode, on the device and in the dtype of its weights.

    Raises:
        ValueError: there are no examples.
    """
    like = next(iter(weights.params.values()))
    predict = functools.partial(model, weights, fresh=True)
    at_once, known = examples.at_once(model.evaluation_batch(500)), measures_of(task)
    cut = None if any(isinstance(known[n], Score) for n in measures) else model.cut  # whose outputs stand side by side
    return _pass(predict, at_once, like.device, like.dtype, task, measures, examples, cut)


@own_defaults()
def _pass(
    predict: Callable[[Tensor], Tensor],
    batch_size: int,
    device: torch.device,
    dtype: torch.dtype,
    task: Task,
    measures: Sequence[str],
    examples: Examples,
    cut: Padded | None = None,
) -> RowResults:
    """Return what a function of inputs makes of examples, on the CPU. It may overwrite its inputs.

    `cut`: how sequences are cut to about the longest of their batch; None: they are whole.
    """
    if not len(examples):
        raise ValueError("there are no examples to evaluate on: give at least one")
    parts, total, count = [], *torch.zeros(2, dtype=torch.float64, device=device)
    if isinstance(cut, Tokens | Inputs) and counts_padding(examples.x, examples.y, cut):
        cut = None
    images = examples.x.ndim == 4 and device.type == "cpu"

    def inputs(rows: slice, length: int | None = None) -> Tensor:
        stored = examples.x[rows]
        if cut is not None and length is not None:
            stored = cut.shortened(stored, length)
        x = examples.normalise(stored.to(device), dtype)
        if images:
            return by_pixels(x)
        shared = x.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()  # nothing was computed
        return x.clone() if shared else x

    with torch.no_grad():
        for start in range(0, len(examples), batch_size):
            rows = slice(start, start + batch_size)
            length = None if cut is None else cut_length(examples.x[rows], cut)
            x, y = inputs(rows, length), examples.y[rows].to(device)
            if length is not None and of_places(y):
                y = y[:, :length]
            logits = predict(x)
            batch = probe(x, y)
            weight = weight_of(task, batch)
            total += loss_of(task, logits, batch, functools.partial(inputs, rows, length)).double() * weight
            count += weight
            parts.append((sums_of(task, measures, logits, y), outputs_of(task, measures, logits)))
    sums, outputs = tree.map_tree(lambda *each: torch.cat(each).cpu(), *parts)
    return RowResults(sums, outputs, examples.y.cpu(), float(per_weight(total, count)))
