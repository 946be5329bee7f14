"""Arithmetic on trees, and the weighted mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core import tree
from fedloom.core.errors import StackingError
from fedloom.core.types import Maybe, Weighted, Weights


def weights(*values: float, count: int = 3) -> Weights:
    params = {f"p{i}": torch.full((2, i + 1), v, dtype=torch.float64) for i, v in enumerate(values)}
    return Weights(params=params, buffers={"mean": torch.tensor([values[0]]), "count": torch.tensor(count)})


def test_arithmetic_leaves_integers_alone() -> None:
    x, y = weights(1.0, 2.0, count=3), weights(10.0, 20.0, count=7)
    assert tree.add(x, y).params["p1"].tolist() == torch.full((2, 2), 22.0).tolist()
    assert tree.sub(y, x).buffers["mean"].tolist() == [9.0]
    assert tree.axpy(2.0, x, y).params["p0"].tolist() == [[12.0], [12.0]]
    assert tree.axpy(torch.tensor(2.0), x, y).params["p0"].tolist() == [[12.0], [12.0]]
    assert tree.scale(3.0, x).params["p0"].tolist() == [[3.0], [3.0]]
    assert [int(tree.add(x, y).buffers["count"]), int(tree.axpy(2.0, x, y).buffers["count"])] == [3, 7]
    assert int(tree.scale(3.0, x).buffers["count"]) == 3


def test_norm_and_inner_product() -> None:
    x, y = weights(1.0, 2.0), weights(10.0, -1.0)
    flat = [torch.cat([t.flatten().double() for t in tree.leaves(w) if t.is_floating_point()]) for w in (x, y)]
    assert float(tree.sq_norm(x)) == float(flat[0] @ flat[0])
    assert float(tree.dot(x, y)) == float(flat[0] @ flat[1])


def test_stack_take_and_cat_undo_each_other() -> None:
    trees = [weights(float(i), count=i) for i in range(4)]
    stacked = tree.stack(trees)
    assert stacked.params["p0"].shape == (4, 2, 1)
    for i, one in enumerate(trees):
        assert tree.same_structure(tree.take(stacked, i), one)
        assert int(tree.take(stacked, i).buffers["count"]) == i
    halves = [tree.take(stacked, slice(0, 1)), tree.take(stacked, slice(1, 4))]
    assert torch.equal(tree.cat(halves).params["p0"], stacked.params["p0"])


def test_same_structure_sees_every_difference() -> None:
    x = weights(1.0)
    assert tree.same_structure(x, weights(2.0))
    assert not tree.same_structure(x, weights(1.0, 2.0))
    assert not tree.same_structure(x, tree.map_tree(lambda t: t[None], x))
    assert not tree.same_structure(x, tree.cast(x, dtype=torch.float32))
    assert not tree.same_structure([x], (x,))


def test_cast_keeps_integers() -> None:
    cast = tree.cast(weights(1.0), dtype=torch.float16)
    assert {n: t.dtype for n, t in cast.buffers.items()} == {"mean": torch.float16, "count": torch.int64}


def test_bytes_of_a_payload() -> None:
    value = {"w": torch.ones(10), "m": Maybe.none(torch.ones(100)), "n": Maybe.some(Maybe.none(torch.ones(5)))}
    assert tree.nbytes(value) == 40 + 1 + 1 + 1
    assert tree.nbytes({**value, "m": Maybe.some(torch.ones(100))}) == 40 + 401 + 2


def test_bytes_of_stacked_payloads() -> None:
    each = [{"w": torch.ones(10), "m": m(torch.ones(100))} for m in (Maybe.some, Maybe.none, Maybe.some)]
    assert tree.nbytes_each(tree.stack(each), 3) == [tree.nbytes(one) for one in each] == [441, 41, 441]


def uploads(values: Any, weight: Any, count: Any) -> Weighted[Weights]:
    value = Weights(params={"w": torch.tensor(values)}, buffers={"count": torch.tensor(count)})
    return Weighted(value=value, weight=torch.tensor(weight))


def test_weighted_mean_of_weights_and_of_each_part() -> None:
    total = tree.WeightedMean()
    upload = (uploads([[1.0], [4.0]], [1, 3], [5, 9]), Weighted(value=torch.tensor([2.0, 6.0]), weight=torch.ones(2)))
    total.add(upload)
    total.add((uploads([[8.0]], [4], [2]), Weighted(value=torch.tensor([7.0]), weight=torch.ones(1))))
    weights, plain = total.result()
    assert weights.params["w"].tolist() == [(1 + 12 + 32) / 8]
    assert weights.params["w"].dtype == torch.float32
    assert int(weights.buffers["count"]) == 9  # counters: the largest
    assert float(plain) == 5.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 50)), min_size=1, max_size=8), st.integers(1, 8))
def test_chunks_do_not_matter(pairs: list[tuple[float, int]], chunk: int) -> None:
    total = tree.WeightedMean()
    for i in range(0, len(pairs), chunk):
        part = pairs[i : i + chunk]
        value = torch.tensor([[v] for v, _ in part], dtype=torch.float64)
        total.add(Weighted(value=value, weight=torch.tensor([w for _, w in part])))
    want = np.average([v for v, _ in pairs], weights=[w for _, w in pairs])
    assert float(total.result()) == pytest.approx(want, abs=1e-12)


def test_mean_is_formed_in_float64() -> None:
    big = torch.tensor([[2.0**24], [1.0], [1.0]])  # in float32, 2^24 + 1 is 2^24
    total = tree.WeightedMean()
    total.add(Weighted(value=big, weight=torch.ones(3)))
    assert float(total.result()) == float(torch.tensor((2**24 + 2) / 3))


def test_mean_refuses_what_it_cannot_weigh() -> None:
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and not negative"):
            tree.WeightedMean().add(Weighted(value=torch.ones(1, 2), weight=torch.tensor([bad])))
    total = tree.WeightedMean()
    total.add(Weighted(value=torch.ones(2, 2), weight=torch.zeros(2)))
    with pytest.raises(ValueError, match="all zero"):
        total.result()
    with pytest.raises(StackingError, match="Weighted"):
        tree.WeightedMean().add({"w": torch.ones(2)})
    assert not tree.WeightedMean()


def test_select_and_merge() -> None:
    w = Weights(params={"a": torch.ones(1), "b": torch.ones(2)}, buffers={"a.mean": torch.ones(1)})
    part = w.select(lambda name: name.startswith("a"))
    assert (list(part.params), list(part.buffers)) == (["a"], ["a.mean"])
    merged = w.merge(tree.scale(2.0, part))
    assert list(merged.params) == ["a", "b"]
    assert [float(t.max()) for t in tree.leaves(merged)] == [2.0, 1.0, 2.0]


def test_maybe_otherwise() -> None:
    one, two = {"w": torch.ones(2)}, {"w": torch.full((2,), 2.0)}
    assert Maybe.some(one).otherwise(two)["w"].tolist() == [1, 1]
    assert Maybe.none(one).otherwise(two)["w"].tolist() == [2, 2]
