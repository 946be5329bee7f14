"""Last layers that are linear: which networks have one, and sums over classes that leave padding out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.algorithms.shared.class_counts import class_counts
from fedloom.algorithms.shared.linear_head import class_sums, linear_head
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.data import from_arrays
from fedloom.models.cosine import CosineHead
from small import batches_of, clients_of

EXAMPLES = from_arrays(np.random.default_rng(0).normal(size=(5, 6)), np.arange(5) % 4, num_classes=4)


class First(nn.Module):
    """The last layer is written before the others."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


def body(*end: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Tanh(), *end)


@pytest.mark.parametrize(
    ("build", "layer", "names", "width"),
    [
        (lambda: body(nn.Linear(3, 4)), "3", ("3.weight", "3.bias"), 3),
        (lambda: body(nn.Dropout(0.5), nn.Linear(3, 4, bias=False)), "4", ("4.weight", "4.bias"), 3),
        (lambda: nn.Linear(6, 4), "", ("weight", "bias"), 6),
    ],
)
def test_linear_heads(build: Any, layer: str, names: tuple[str, str], width: int) -> None:
    model = Model(build, name="net")
    head = linear_head(model, EXAMPLES, "X")
    assert (head.layer, (head.weight, head.bias), head.num_classes, head.width) == (layer, names, 4, width)
    weights, x = model.init(1), EXAMPLES.x.float()
    logits, z = model.with_features(weights, x, head.features)
    torch.testing.assert_close(head.logits(weights.params, z), logits)


@pytest.mark.parametrize(
    ("model", "last"),
    [
        (Model(lambda: body(nn.Linear(3, 4), nn.Softmax(-1)), name="net"), "'3', a Linear"),
        (Model(lambda: body(CosineHead(3, 4)), name="net"), "'3', a CosineHead"),
        (Model(First, name="net"), "'body', a Linear"),
        (Model(lambda: body(nn.Linear(3, 4)), name="net", frozen="3"), "'3', a Linear"),
        (Model(lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 2), nn.Flatten()), name="net"), "'1', a L"),
    ],
)
def test_other_ends_are_refused(model: Model, last: str) -> None:
    with pytest.raises(SettingError, match=f"X needs a network whose logits are .*, and the last of net is {last}"):
        linear_head(model, EXAMPLES, "X")


def test_sums_and_numbers_of_classes_leave_padding_out() -> None:
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    mask = torch.tensor([True, True, True, False])
    batch = Batch(x=z, y=torch.tensor([2, 0, 2, 2]), mask=mask, key=torch.tensor(0))
    assert class_sums(z, batch, 3).tolist() == [[3.0, 4.0, 1.0], [0.0, 0.0, 0.0], [6.0, 8.0, 2.0]]
    data = [(np.zeros((n, 6)), np.array(y)) for n, y in ((3, [1, 1, 3]), (5, [0, 1, 2, 3, 3]))]
    both = batches_of(clients_of(data), (0, 1), Local(epochs=1, batch_size=4))
    counts = torch.func.vmap(lambda batches: class_counts(batches, 4), in_dims=(_axes(both),))(both)
    assert counts.tolist() == [[0, 2, 0, 1], [1, 1, 1, 2]]


def _axes(stacked: Any) -> Any:
    """The client axes of stacked batches: examples that all share have none."""
    from torch.utils._pytree import tree_map_with_path

    return tree_map_with_path(lambda path, t: None if str(path[0]) in (".x", ".y") else 0, stacked)
