"""Comparisons of trees: what they let pass, and what not."""

from __future__ import annotations

import pytest
import torch

from fedloom.testing.compare import close, copy_of, differ, same

TREE = {"a": torch.tensor([0.01, 100.0]), "b": torch.tensor([1, 2])}


def changed(value: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**TREE, "a": value}


def test_a_tolerance_is_relative_above_one_and_absolute_below() -> None:
    close(TREE, changed(TREE["a"] + 0.09), "s", 1e-3)
    with pytest.raises(AssertionError, match=r"s: leaf 0 \[2\] differs by 0.11, allowed is 0.1"):
        close(TREE, changed(TREE["a"] + 0.11), "s", 1e-3)
    small = {"a": torch.tensor([0.01])}
    close(small, {"a": torch.tensor([0.0109])}, "s", 1e-3)


def test_every_bit_type_and_shape_counts() -> None:
    same(TREE, copy_of(TREE), "s")
    assert copy_of(TREE)["a"] is not TREE["a"]
    for other, why in (
        (changed(torch.nextafter(TREE["a"], torch.tensor(9.0))), "differs by"),
        (changed(TREE["a"].double()), "leaf 0 is torch.float32"),
        (changed(TREE["a"][:1]), "leaf 0 is torch.float32"),
        ({"a": TREE["a"]}, "the structures differ"),
    ):
        with pytest.raises(AssertionError, match=why):
            same(TREE, other, "s")


def test_trees_differ_where_one_leaf_does() -> None:
    assert not differ(TREE, copy_of(TREE))
    assert differ(TREE, changed(TREE["a"] + 1))
    assert differ(TREE, {"a": TREE["a"]})
