"""Comparisons of the battery: trees, to the last bit or to a tolerance, and through the codec."""

from __future__ import annotations

from typing import Any

import torch

from fedloom.core import tree
from fedloom.core.errors import CodecError
from fedloom.storage.codec import decode, encode


def round_trip(value: Any, subject: str) -> Any:
    """Return the value, encoded and decoded."""
    try:
        back = decode(encode(value), tree.zeros_like(value))
    except CodecError as error:
        raise AssertionError(f"the {subject} cannot travel: {error}") from error
    same(value, back, f"the {subject} must pass through the codec unchanged")
    return back


def copy_of(value: Any) -> Any:
    """Return a tree that no later step in place can reach."""
    return tree.map_tree(torch.clone, value)


def same(x: Any, y: Any, subject: str) -> None:
    """Check that two trees agree in every bit."""
    close(x, y, subject, 0.0)


def close(x: Any, y: Any, subject: str, tolerance: float) -> None:
    """Check that two trees agree in structure, and in values to `tolerance`, relative above 1 (0: in every bit)."""
    assert tree.flatten(x)[1] == tree.flatten(y)[1], f"{subject}: the structures differ"
    for i, (a, b) in enumerate(zip(tree.leaves(x), tree.leaves(y), strict=True)):
        alike = a.shape == b.shape and a.dtype == b.dtype
        assert alike, f"{subject}: leaf {i} is {a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
        if torch.equal(a, b):
            continue
        gap = float((a.double() - b.double()).abs().max())
        allowed = tolerance * max(1.0, float(a.double().abs().max()))
        assert gap <= allowed, f"{subject}: leaf {i} {list(a.shape)} differs by {gap:.3g}, allowed is {allowed:.3g}"


def differ(x: Any, y: Any) -> bool:
    """Return whether two trees differ anywhere."""
    (a, spec_a), (b, spec_b) = tree.flatten(x), tree.flatten(y)
    return bool(spec_a != spec_b or not all(torch.equal(u, v) for u, v in zip(a, b, strict=True)))
