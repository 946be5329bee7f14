"""Scores by ranks: area under the ROC curve and average precision, of many sets of examples at once.

Each function takes outputs [K, N], which examples are positive, [K, N] bool, and which rows are real, [K, N] bool; it
returns the score of each set, [K] float64, NaN where a set lacks positives or negatives (positives alone for average
precision), or where the output of a real row is NaN. Ties are worth what scikit-learn's functions give them.
Of K = 2 sets of N = 3 rows:

    outputs   [[.1, .8, .8], [.3, .2, 0]]      positive  [[0, 1, 0], [1, 0, -]]      real  [[1, 1, 1], [1, 1, 0]]
    sorted    [[.1, .8, .8], [.2, .3, inf]]    what is not real stands behind all else, and changes no rank
    ranks     [[1, 2.5, 2.5], [2, 1, -]]       of the rows in their own order; equal outputs share the mean of theirs
    area      [(2.5 - 1) / (1 * 2), (2 - 1) / (1 * 1)] = [0.75, 1]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def roc_auc(outputs: Tensor, positive: Tensor, real: Tensor) -> Tensor:
    """Return the area under the ROC curve of each set, [K], from the ranks of its positives (Mann and Whitney)."""
    values, positive = _behind(outputs, real), positive & real
    ordered = values.sort(-1).values  # NaN behind all else
    below = torch.searchsorted(ordered, values)
    until = torch.searchsorted(ordered, values, right=True)
    until = until.clamp(max=real.sum(-1, keepdim=True))  # what is not real ties with no row at plus infinity
    ranks = (below + until + 1).double() / 2  # from 1
    count = positive.sum(-1).double()
    others = (real & ~positive).sum(-1).double()
    wins = torch.where(positive, ranks, 0.0).sum(-1) - count * (count + 1) / 2
    return _defined(wins / (count * others), ordered)  # 0 / 0 is NaN


def average_precision(outputs: Tensor, positive: Tensor, real: Tensor) -> Tensor:
    """Return the average precision of each set, [K]: the mean over its positives of the precision at their threshold.

    A threshold takes in all rows with at least this output.
    """
    values, positive = _behind(outputs, real), positive & real
    ordered, order = values.sort(-1)
    below = torch.searchsorted(ordered, values)  # how many rows lie below each one's threshold
    so_far = torch.nn.functional.pad(positive.gather(-1, order).cumsum(-1), (1, 0))  # positives among the lowest n
    count = positive.sum(-1, keepdim=True)
    taken = real.sum(-1, keepdim=True) - below
    precision = (count - so_far.gather(-1, below)).double() / taken.clamp(min=1)
    return _defined(torch.where(positive, precision, 0.0).sum(-1) / count.squeeze(-1).double(), ordered)


@dataclass(frozen=True)
class MeanScore:
    """Take the mean of a score over the classes, or the labels, that have one; of two classes the score of class 1.

    It can be compared, for programs that are traced once.
    """

    score: Callable[[Tensor, Tensor, Tensor], Tensor]
    of_labels: bool = False

    def __call__(self, outputs: Tensor, y: Tensor, real: Tensor) -> Tensor:
        columns = outputs.shape[-1]
        of = [1] if columns == 2 and not self.of_labels else range(columns)
        positive = [y[..., c] > 0.5 if self.of_labels else y == c for c in of]
        each = [self.score(outputs[..., c], positives, real) for c, positives in zip(of, positive, strict=True)]
        silent = (outputs.isnan().any(-1) & real).any(-1)  # no mean of the other classes
        return mean_where_defined(torch.stack(each, -1)).masked_fill(silent, torch.nan)


def mean_where_defined(scores: Tensor) -> Tensor:
    """Return the mean of scores [K, C] over the classes that have one, [K]; NaN where none has."""
    there = ~scores.isnan()
    return torch.where(there, scores, 0.0).sum(-1) / there.sum(-1).double()


def _defined(scores: Tensor, ordered: Tensor) -> Tensor:
    """Return scores, [K]; NaN where the last of a set's ordered values, [K, N], is."""
    return torch.where(ordered[..., -1].isnan(), torch.nan, scores)


def _behind(outputs: Tensor, real: Tensor) -> Tensor:
    return torch.where(real, outputs.double(), torch.inf).contiguous()
