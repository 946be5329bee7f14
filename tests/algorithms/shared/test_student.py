"""The loss of a server's student, and which network it has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedloom import Model
from fedloom.algorithms.shared.student import student_among, student_loss
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.testing.small_networks import CLASSES, FEATURES, MLP, Normalised


def test_the_student_learns_the_teachers_answers_at_the_temperature_of_both_and_moves_its_statistics() -> None:
    model, T = Model(Normalised), 3.0
    w = model.init(0)
    batch = Batch(
        x=torch.randn(5, FEATURES), y=torch.zeros(5, dtype=torch.int64), mask=torch.ones(5, dtype=torch.bool),
        key=torch.tensor(1), notes={"teacher": torch.randn(5, CLASSES)},
    )  # fmt: skip
    found = student_loss(model, T)(w, batch)
    said, wanted = (each.div(T).log_softmax(1) for each in (found.logits, batch.teacher))
    torch.testing.assert_close(found.value, T**2 * F.kl_div(said, wanted, log_target=True, reduction="batchmean"))
    assert found.weights is not None
    assert not torch.equal(found.weights.buffers["norm.running_mean"], w.buffers["norm.running_mean"])


def test_a_student_is_one_of_the_runs_networks() -> None:
    models = {"narrow": Model(MLP), "normalised": Model(Normalised)}
    assert student_among(models, "normalised") is models["normalised"]
    with pytest.raises(SettingError, match="one of the run's networks, narrow, normalised, got 'big': name one"):
        student_among(models, "big")
