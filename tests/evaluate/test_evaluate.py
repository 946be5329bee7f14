"""Accuracy by class and by row, on clients' own distributions, and forgetting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import nn

from fedloom import Classification, Examples, Hinge, Model
from fedloom.core import tree
from fedloom.data import Normalise
from fedloom.evaluate import classify, forgetting, in_local, out_local, rows_right


def examples(n: int = 23, classes: int = 4, missing: int = 2) -> Examples:
    """Images whose labels never name the class `missing`."""
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (n, 2, 5, 5), dtype=torch.uint8, generator=g)
    y = torch.arange(n) % (classes - 1)
    return Examples(x, y + (y >= missing), classes, Normalise((0.2, 0.4), (0.3, 0.5), 1 / 255))


def layers() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(27, 4))


def network() -> Model:
    return Model(layers)


def test_the_loss_with_class_weights_is_pytorchs_over_all_rows() -> None:
    y = (torch.arange(1207) < 100).long()  # 500 at a time: the rare class stands in the first
    x = torch.randn(1207, 3, generator=torch.Generator().manual_seed(0))
    data, model = Examples(x, y, 2), Model(nn.Linear(3, 2))
    weights = model.init(0)
    with torch.no_grad():
        logits = model(weights, data.x)
    expected = F.cross_entropy(logits.double(), y, weight=torch.tensor([1.0, 9.0], dtype=torch.float64))
    found = classify(model, weights, Classification(class_weights=(1.0, 9.0)), data)
    assert found.loss == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("n", [7, 1207])  # 500 at a time
def test_classify_agrees_with_a_direct_computation(n: int) -> None:
    data, model = examples(n), network()
    weights = tree.cast(model.init(3), dtype=torch.float64)
    found = classify(model, weights, Classification(), data)

    module = layers().double().eval()
    module.load_state_dict({**weights.params, **weights.buffers})
    mean, std = (torch.tensor(v, dtype=torch.float64).view(2, 1, 1) for v in ([0.2, 0.4], [0.3, 0.5]))
    with torch.no_grad():
        logits = module((data.x.double() / 255 - mean) / std)
    right = (logits.argmax(1) == data.y).numpy()
    assert 0 < right.sum() < len(right)
    assert rows_right(model, weights, Classification(), data).tolist() == right.tolist()
    assert found.accuracy == right.mean()
    assert found.loss == pytest.approx(F.cross_entropy(logits, data.y).item(), abs=1e-12)
    for c in range(4):
        of_class = data.y.numpy() == c
        assert (found.right[c], found.total[c]) == (right[of_class].sum(), of_class.sum())


def test_a_class_without_examples_has_no_accuracy() -> None:
    model = network()
    per_class = classify(model, model.init(0), Classification(), examples()).per_class
    assert np.isnan(per_class).tolist() == [False, False, True, False]


def test_evaluation_uses_the_task_and_leaves_the_weights_alone() -> None:
    x = torch.tensor([[1.0], [-1.0], [2.0], [-3.0]])
    data = Examples(x, torch.tensor([1, 0, 0, 1]), 2)
    model = Model(lambda: nn.Linear(1, 1))
    weights = model.init(0)
    weights.params["weight"].fill_(1.0)
    weights.params["bias"].fill_(0.0)
    found = classify(model, weights, Hinge(), data)
    assert rows_right(model, weights, Hinge(), data).tolist() == [True, True, False, False]
    assert found.loss == pytest.approx((0 + 0 + 3 + 4) / 4)
    assert weights.params["weight"].item() == 1.0


def test_what_cannot_be_evaluated_is_refused() -> None:
    model = Model(lambda: nn.Linear(3, 2))
    none = Examples(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 2)
    with pytest.raises(ValueError, match="no examples to evaluate on"):
        rows_right(model, model.init(0), Classification(), none)
    targets = Examples(torch.zeros(4, 3), torch.rand(4), 1)
    with pytest.raises(ValueError, match=r"needs int64 labels, got targets of type torch\.float32"):
        classify(model, model.init(0), Classification(), targets)


def test_in_and_out_local_accuracy_are_the_official_ones() -> None:
    g = golden("fedntd/measures")
    counts, rows = g["counts"], g["sampled"]
    share = (counts / counts.sum(1, keepdims=True))[rows]
    accuracies = g["cwa_float32"].astype(np.float64)[rows]
    inside = np.array([in_local(p, a) for p, a in zip(share, accuracies, strict=True)])
    outside = np.array([out_local(p, a) for p, a in zip(share, accuracies, strict=True)])
    np.testing.assert_allclose(inside, g["in_acc_per_client"], atol=1e-6)  # theirs are float32
    np.testing.assert_allclose(outside, g["out_acc_per_client"], atol=1e-6)
    assert inside.mean() == pytest.approx(float(g["official_in_dist_acc_mean"]), abs=1e-6)
    assert outside.mean() == pytest.approx(float(g["official_in_dout_acc_mean"]), abs=1e-6)


def test_local_accuracies_leave_out_classes_without_test_examples() -> None:
    per_class = np.array([0.5, np.nan, 0.8])
    share = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    np.testing.assert_allclose(in_local(share, per_class), [(0.5 * 0.5 + 0.25 * 0.8) / 0.75, np.nan])
    np.testing.assert_allclose(out_local(share, per_class), [(0.5 * 0.5 + 0.75 * 0.8) / 1.25, 0.65])


def test_forgetting_is_that_of_the_reference() -> None:
    g = golden("fedntd/measures")
    by_class = forgetting(g["acc"])
    np.testing.assert_allclose(by_class, g["forgetting_per_class_t_lt_T"], atol=1e-12)
    assert by_class[3] < 0  # at its best in the end
    assert by_class.mean() == pytest.approx(float(g["forgetting_t_lt_T"]), abs=1e-12)
    assert forgetting(g["acc"], "all").mean() == pytest.approx(float(g["forgetting_t_le_T"]), abs=1e-12)


def test_forgetting_needs_a_past() -> None:
    one = np.array([[0.1, 0.2]])
    assert np.isnan(forgetting(one)).all()
    assert forgetting(one, "all").tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"at least one round, got \(0, 3\)"):
        forgetting(np.zeros((0, 3)))
    with pytest.raises(ValueError, match="convention must be 'earlier'"):
        forgetting(one, "some")  # type: ignore[arg-type]
