"""Networks and tasks by the names that people type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.core.errors import SettingError
from fedloom.data.inputs import Input, Inputs, Tokens
from fedloom.experiments.catalogue import models_and_tasks

FLAT = fl.from_arrays(np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]))


def test_settings_of_a_task_stand_behind_its_name() -> None:
    assert models_and_tasks.task("ldam").drw != models_and_tasks.task("ldam_drw").drw == 0.8  # type: ignore[attr-defined]
    assert models_and_tasks.task("regression").standardise is True  # type: ignore[attr-defined]
    found = models_and_tasks.task("regression?standardise=false&error=huber&delta=2")
    assert (found.standardise, found.error, found.delta) == (False, "huber", 2.0)  # type: ignore[attr-defined]
    assert models_and_tasks.task("binary?threshold=validation").threshold == "validation"  # type: ignore[attr-defined]
    assert models_and_tasks.task("classification?class_weights=1,2").class_weights == (1.0, 2.0)  # type: ignore[attr-defined]


def test_a_class_of_ones_own_is_made() -> None:
    assert isinstance(models_and_tasks.task("fedloom.tasks:Hinge"), fl.tasks.Hinge)


@pytest.mark.parametrize("names", ["mlp,lenet,mlp", "fedloom.models:MLP,fedloom.models:MLP"])
def test_a_model_is_named_once(names: str) -> None:
    with pytest.raises(SettingError, match="each model is named once, got"):
        models_and_tasks.models(names, FLAT)


def test_a_vocabulary_that_is_not_said_ends_with_the_largest_id() -> None:
    ids = torch.tensor([[5, 7, 2], [3, 9, 0]])
    for said, vocabulary in ((None, 10), (40, 40)):
        texts = fl.Examples(ids, torch.tensor([0, 1]), 2, Tokens(vocabulary=said))
        assert models_and_tasks._read(texts).tokens == vocabulary


def test_categories_stand_behind_all_numbers() -> None:
    parts = (Input("numbers", (2,), "numbers"), Input("categories", (2,), "integers"))
    rows = torch.tensor([[0.5, 90.0, 3.0, 1.0], [70.0, 0.5, 0.0, 6.0]])
    table = fl.Examples(rows, torch.tensor([0, 1]), 2, Inputs(parts))
    assert models_and_tasks._read(table).categories == (4, 7)
    other = fl.Examples(rows, table.y, 2, Inputs((parts[0], Input("words", (2,), "integers"))))
    with pytest.raises(SettingError, match="or the two numbers and categories, got numbers, words"):
        models_and_tasks._read(other)
