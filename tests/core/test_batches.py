"""The plan of a round's batches, and batches of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedloom.core import tree
from fedloom.core.batch import Batch, padded
from fedloom.core.batches import Batches, plan
from fedloom.core.fold import fold
from fedloom.core.local_training import Local
from fedloom.core.types import replace
from small import batches_of as batches_of_clients, clients_of

sizes_of = st.lists(st.integers(0, 30), min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(sizes_of, st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**62 - 1))
def test_every_epoch_visits_every_example_once(sizes: list[int], batch_size: int, epochs: int, key: int) -> None:
    order, mask = plan(np.array(sizes), batch_size, [key + k for k in range(len(sizes))], epochs=epochs)
    assert order.shape == mask.shape
    assert order.shape[::2] == (len(sizes), min(batch_size, padded(max(sizes))))
    for k, n in enumerate(sizes):
        per_epoch = -(-n // batch_size)
        steps = mask[k].any(1)
        assert steps.sum() == epochs * per_epoch
        assert not (np.diff(steps.astype(int)) > 0).any()  # steps without a real row come last
        assert not (np.diff(mask[k].astype(int), axis=1) > 0).any()  # padding comes last in a batch
        for e in range(epochs):
            part = slice(e * per_epoch, (e + 1) * per_epoch)
            assert sorted(order[k, part][mask[k, part]]) == list(range(n))
            assert (mask[k, part].sum(1)[:-1] == batch_size).all()  # only the last batch of an epoch is short
        assert (order[k][~mask[k]] == 0).all()


@settings(max_examples=100, deadline=None)
@given(sizes_of, st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**62 - 1))
def test_steps_are_as_many_as_asked_for(sizes: list[int], batch_size: int, steps: int, key: int) -> None:
    order, mask = plan(np.array(sizes), batch_size, [key] * len(sizes), steps=steps)
    for k, n in enumerate(sizes):
        assert mask[k].any(1).sum() == (steps if n else 0)
        per_epoch = -(-n // batch_size)
        for e in range(steps // max(1, per_epoch) if n else 0):
            part = slice(e * per_epoch, (e + 1) * per_epoch)
            assert sorted(order[k, part][mask[k, part]]) == list(range(n))


@settings(max_examples=50, deadline=None)
@given(sizes_of, st.integers(1, 5), st.integers(1, 3))
def test_a_client_does_not_depend_on_its_company(sizes: list[int], batch_size: int, epochs: int) -> None:
    keys = [1000 + k for k in range(len(sizes))]
    order, mask = plan(np.array(sizes), batch_size, keys, epochs=epochs)
    for k, n in enumerate(sizes):
        alone, real = plan(np.array([n]), batch_size, [keys[k]], epochs=epochs)
        S, B = real.any(2).sum(), real.shape[2]  # alone, its batches may be narrower
        assert (order[k, :S, :B] == alone[0, :S]).all()
        assert (mask[k, :S, :B] == real[0, :S]).all()
        assert mask[k].sum() == real.sum()


def test_a_batch_is_no_wider_than_the_largest_client_needs() -> None:
    sizes = np.array([5, 400, 3])
    wide, mask = plan(sizes, 100_000, [1, 2, 3], epochs=2)
    assert wide.shape == mask.shape == (3, 2, 512)
    for k, n in enumerate(sizes):
        whole, _ = plan(np.array([n]), int(n), [k + 1], epochs=2)
        assert (wide[k][mask[k]].reshape(2, n) == whole[0]).all()


def test_shuffles_differ_by_epoch_and_key_and_are_uniform() -> None:
    order, _ = plan(np.array([20, 20]), 20, [1, 2], epochs=2)
    assert len({tuple(row) for row in order.reshape(4, 20)}) == 4
    again, _ = plan(np.array([20]), 20, [2], epochs=2)
    assert (again[0] == order[1]).all()
    many, _ = plan(np.full(3000, 3), 3, list(range(0, 3000 * 7919, 7919)))
    _, counts = np.unique(many[:, 0] @ [9, 3, 1], return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 500).max() < 5 * (3000 * 5 / 36) ** 0.5


def test_without_keys_the_stored_order() -> None:
    order, mask = plan(np.array([5]), 2, None, epochs=2)
    assert order[0][mask[0]].tolist() == [0, 1, 2, 3, 4] * 2


def batches_of(n: int, batch_size: int = 4) -> Batches:
    """Shuffled batches of the second of two clients, which has n examples."""
    data = [(np.arange(m * 6.0).reshape(m, 6) + 100 * m, np.arange(m) % 4) for m in (3, n)]
    stacked = batches_of_clients(clients_of(data), [1], Local(epochs=1, batch_size=batch_size))
    return tree.take(replace(stacked, x=stacked.x[None], y=stacked.y[None]), 0)


def test_predictions_come_in_the_order_of_the_examples() -> None:
    b = batches_of(407)  # three passes of at most 200, the last with padding
    table = b.predict(lambda x: x * 2)
    np.testing.assert_array_equal(table, b.x[b.examples] * 2)
    np.testing.assert_array_equal(b.predict(lambda x: x.sum(1)), b.x[b.examples].sum(1))


SOME = torch.tensor([False, True, True, False, True, False, True])  # of seven examples
WAYS: dict[str, tuple[Any, Any]] = {  # from batches to others, and which examples these visit
    "as they are": (lambda b: b, slice(None)),
    "whole": (lambda b: b.whole(), slice(None)),
    "in order": (lambda b: b.in_order(3), slice(None)),
    "only some": (lambda b: b.only(SOME), SOME),
    "only some of some": (lambda b: b.only(SOME).only(torch.arange(7) > 0), [2, 4, 6]),
    "the first": (lambda b: b.first(torch.tensor(1)), None),
    "a part": (lambda b: b.part(1, 2), None),
    "what follows": (lambda b: b.after(torch.tensor(1)), None),
    "passes": (lambda b: b.passes(torch.tensor([[6, 2, 5, 0, 1, 3, 4], [3, 1, 0, 2, 6, 5, 4]]), b.key), slice(None)),
}


@pytest.mark.parametrize("way", WAYS)
def test_notes_stay_with_their_examples(way: str) -> None:
    """Each real row of a batch has the note of its own example, whichever are visited and in whatever order."""
    change, visited = WAYS[way]
    b = batches_of(7)
    own = b.x[b.examples].sum(1)  # of each example another number
    seen = fold(
        lambda seen, batch: seen.index_copy(0, batch.place, torch.where(batch.of_x == batch.x.sum(1), 1.0, -1.0)),
        torch.zeros(7),
        change(b.note("place", torch.arange(7)).note("of_x", own)),
    )
    assert len(own.unique()) == 7
    if visited is None:  # which of them, the order of the batches says
        assert sorted(seen.unique().tolist()) == [0, 1]
    else:
        expected = torch.zeros(7)
        expected[visited] = 1
        assert seen.tolist() == expected.tolist()


def test_each_part_of_a_training_draws_numbers_of_its_own() -> None:
    """Dropout of the third batch is not that of the first, because a student is validated in between."""
    b = batches_of(30)
    keys = [
        int(key)
        for start in (0, 2, 4, 6)
        for key in fold(
            lambda keys, batch: torch.cat([keys[1:], batch.key[None]]), b.key.expand(2), b.part(start, start + 2)
        )
    ]
    assert len(set(keys)) == len(keys) == 8


def seen(batches: Batches) -> list[list[int]]:
    """The places of the examples that each step visits, and its key."""
    nobody = torch.full((len(batches.order), batches.order.shape[1] + 1), -1)

    def look(carry: tuple[torch.Tensor, torch.Tensor], batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        places, at = carry
        row = torch.cat([torch.where(batch.mask, batch.of, -1), batch.key[None]])
        return places.index_copy(0, at, row[None]), at + 1

    found, taken = fold(look, (nobody, torch.tensor([0])), batches.note("of", batches.places))
    return found[: int(taken)].tolist()


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 9])
def test_what_follows_some_batches_is_the_rest_with_keys_of_its_own(steps: int) -> None:
    """Four batches, and one that is not taken."""
    order, real = torch.arange(10).reshape(5, 2) % 7, torch.ones(5, 2).bool()
    long = replace(batches_of(7), order=order, mask=real, num_steps=torch.tensor(4))
    first, rest = seen(long.first(torch.tensor(steps))), seen(long.after(torch.tensor(steps)))
    assert [row[:-1] for row in first + rest] == [[0, 1], [2, 3], [4, 5], [6, 0]]
    assert len({row[-1] for row in first + rest}) == 4


@pytest.mark.parametrize("share", [0.01, 0.34, 0.8, 1.0])
def test_a_block_is_a_share_of_the_examples_that_stand_beside_each_other(share: float) -> None:
    begins = set()
    for n in (5, 50):
        for key in range(40):
            block = batches_of(n).block(share, torch.tensor(key)).in_order(4)
            rows = block.examples[block.order[block.mask]].tolist()
            assert rows == list(range(rows[0], rows[0] + max(int(n * share), 1)))
            assert {*rows} <= {*batches_of(n).examples.tolist()}
            begins.add((n, rows[0]))
    assert len(begins) > 8 or share == 1.0


def test_notes_need_a_row_for_each_example() -> None:
    with pytest.raises(ValueError, match="one row for each of 7 examples, got 6"):
        batches_of(7).note("teacher", torch.zeros(6, 2))


def test_a_missing_annotation_is_named() -> None:
    x = torch.zeros(2, 3)
    batch = Batch(x=x, y=x[:, 0].long(), mask=x[:, 0] == 0, key=torch.tensor(0), notes={"target": x})
    assert batch.target is x
    with pytest.raises(AttributeError, match=r"no annotation 'teacher', only \['target'\]: batches.annotate"):
        _ = batch.teacher


def test_mean_counts_real_rows_only() -> None:
    value = torch.tensor([1.0, 3.0, 100.0])
    mask = torch.tensor([True, True, False])
    args = {"x": value[:, None], "y": mask.long(), "key": torch.tensor(0)}
    assert float(Batch(mask=mask, **args).mean(value)) == 2.0
    assert float(Batch(mask=~mask & False, **args).mean(value)) == 0.0
    assert float(Batch(mask=mask | True, full=True, **args).mean(value)) == pytest.approx(104 / 3)
    assert float(Batch(mask=mask, **args).mean(torch.tensor([1.0, 3.0, float("nan")]))) == 2.0
