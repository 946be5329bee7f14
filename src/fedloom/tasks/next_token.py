"""Next token: one token of a vocabulary for each place of a sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.task import TargetKind
from fedloom.core.task_measures import Sum, TaskMeasure
from fedloom.data.inputs import IGNORED


@dataclass(frozen=True)
class NextToken:
    """Cross-entropy of the token at each place: targets [B, T], -100 where none counts, and logits [B, T, V].

    Targets of one place are [B], and logits [B, V].

    Loss and measures are means over the places that count, so a long sequence counts for more than a short one, within
    a batch and over examples. A client counts in a mean over clients by its sequences, as in any other task.
    """

    targets: ClassVar[TargetKind] = "tokens"

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of each token over the real rows of a batch, [].

        Args:
            logits: outputs of the network, [B, T, V].
            batch: the examples, with their targets and the number of real rows.
        """
        each = self._surprise(logits, batch.y).reshape(len(logits), -1).sum(1)
        count = batch.mean(self.example_weights(batch).to(each.dtype))
        return batch.mean(each) / count.clamp(min=1 / (2 * len(each)))  # 0 where no place of the batch counts

    def example_weights(self, batch: Batch) -> Tensor:
        """Return how many places of each sequence count, [B].

        Args:
            batch: the examples, with token ids as targets, [B, T]; -100 where none counts.
        """
        return _places(batch.y)

    def silent(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return on which sequences nothing is said, [B] bool: where no token of a place that counts has a probability.

        Args:
            logits: outputs of the network, [B, T, V].
            y: token ids, [B, T]; -100 where none counts.
        """
        self._check_shapes(logits, y)
        none = ~logits.amax(-1).isfinite()  # NaN, plus infinity, or minus infinity of all tokens
        return (none & (y != IGNORED)).reshape(len(y), -1).any(1)

    def predicted(self, logits: Tensor) -> Tensor:
        """Return the predicted token at each place, [B, T].

        Args:
            logits: outputs of the network, [B, T, V].
        """
        return logits.argmax(-1)

    @property
    def measures(self) -> tuple[TaskMeasure, ...]:
        """The measures of the task, the accuracy of tokens first. All are sums of two numbers of each sequence."""
        return (
            Sum(
                name="token_accuracy", title="accuracy of tokens", rows=self._right, value=_mean, possible=_is_share,
                chance="majority",
                meaning="Share of the places that count whose token is the most probable one.",
            ),
            Sum(
                name="perplexity", title="perplexity", rows=self._surprises, value=_perplexity,
                possible=_is_sum, better="low", unit="",
                meaning="Exponential of the mean cross-entropy over the places that count.",
            ),
            Sum(
                name="log_loss", title="cross-entropy", rows=self._surprises, value=_mean, possible=_is_sum,
                better="low", unit="",
                meaning="Mean negative logarithm of the probability of the token, in nats, over the places that count.",
            ),
        )  # fmt: skip

    def _surprise(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy at each place, as `y` is; 0 where none counts."""
        self._check_shapes(logits, y)
        flat = logits.reshape(-1, logits.shape[-1])
        return F.cross_entropy(flat, y.reshape(-1), reduction="none", ignore_index=IGNORED).reshape(y.shape)

    def _right(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the right places of each sequence and those that count, [B, 2]."""
        self._check_shapes(logits, y)
        return self._rows((self.predicted(logits) == y).double(), y)

    def _surprises(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the summed cross-entropy of each sequence and how many of its places count, [B, 2]."""
        return self._rows(self._surprise(logits, y).double(), y)

    def _check_shapes(self, logits: Tensor, y: Tensor) -> None:
        if logits.shape[:-1] != y.shape:
            raise SettingError(
                f"logits are those of a vocabulary for each target, {[*y.shape, 'V']}, got {list(logits.shape)} for "
                f"targets {list(y.shape)}: take a network that answers at every place, or targets of one alone (N,)"
            )

    def _rows(self, each: Tensor, y: Tensor) -> Tensor:
        return torch.stack([each.reshape(len(y), -1).sum(1), _places(y).double()], 1)


def _places(y: Tensor) -> Tensor:
    """Return how many places of each sequence count, [B]."""
    return (y != IGNORED).reshape(len(y), -1).sum(1)


def _mean(total: Tensor, count: int) -> float:
    return float(total[0] / total[1]) if total[1] else math.nan


def _is_sum(total: Tensor, count: int) -> bool:
    return bool(total.isfinite().all()) and bool(total[1] >= 0)


def _is_share(total: Tensor, count: int) -> bool:
    return _is_sum(total, count) and bool(0 <= total[0] <= total[1])


def _perplexity(total: Tensor, count: int) -> float:
    mean = _mean(total, count)
    return math.inf if mean > 709 else math.exp(mean)  # beyond, no float holds it
