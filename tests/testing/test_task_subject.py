"""Random cases of the checks of tasks."""

from __future__ import annotations

import pytest
import torch

import fedloom as fl
from fedloom.testing.task_subject import ROWS, TaskSubject


def test_every_class_has_an_example_and_targets_are_of_their_kind() -> None:
    classes = TaskSubject(fl.Classification(), 4, 4)
    assert set(classes.targets(4, 0).tolist()) == {0, 1, 2, 3}
    assert set(classes.case().y.tolist()) == {0, 1, 2, 3}
    assert set(TaskSubject(fl.MultiLabel(), 2, 2).targets(30, 0).flatten().tolist()) == {0.0, 1.0}
    for outputs, shape in ((1, (5,)), (2, (5, 2))):
        assert TaskSubject(fl.Regression(), outputs, outputs).targets(5, 0).shape == shape


def test_a_case_is_standardised_by_its_own_targets_and_its_loss_is_of_the_logits_that_are_given() -> None:
    case = TaskSubject(fl.Regression(), 2, 2).case()
    zero = case.loss(torch.zeros_like(case.logits))
    assert float(zero) == pytest.approx(1.0)  # of standardised targets, by their own deviation
    assert float(case.loss()) != pytest.approx(1.0)


def test_rows_bring_their_targets_and_notes() -> None:
    case = TaskSubject(fl.Regression(), 2, 2).case()
    rows = [5, 0, ROWS - 1]
    case = type(case)(case.task, case.logits, case.y, case.x, {"place": torch.arange(ROWS)})
    some = case.take(rows)
    assert some.notes["place"].tolist() == rows
    for name in ("logits", "y", "x"):
        assert torch.equal(getattr(some, name), getattr(case, name)[rows])
