"""Data that change: when examples are there, what they become, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.data import (
    NEVER,
    Arrival,
    Drift,
    Examples,
    Federation,
    Growing,
    LabelDrift,
    OffsetDrift,
    RotationDrift,
    Window,
    by_lists,
    federate,
)

SIZES = (1, 2, 7, 30)


def federation(arrives: Arrival | None = None, drift: Drift | None = None, **more: Any) -> Federation:
    """Three clients with 7, 12 and 5 of 24 bytes in a square image, of three classes."""
    x = torch.arange(24 * 4, dtype=torch.uint8).view(24, 1, 2, 2)
    train = Examples(x, torch.arange(24) % 3, 3)
    test = replace(train, x=x[:6], y=train.y[:6])
    lists = by_lists([range(7), range(7, 19), range(19, 24)])
    return federate(train, lists, test=test, test_fraction=0.2, arrives=arrives, drift=drift, **more)


def there(rule: Arrival, size: int, round: int) -> list[int]:
    """The places of a client's examples that are there in a round."""
    since, until = rule.times(np.arange(size), np.full(size, size))
    return np.flatnonzero((since <= round) & (round < until)).tolist()


# ---- arrivals


@pytest.mark.parametrize("n", SIZES)
def test_examples_grow_evenly_from_a_share_to_all(n: int) -> None:
    for t in range(8):  # rounds 1 to 8: the share 0.2 in round 1, all from round 6 on
        share = min(1.0, 0.2 + 0.8 * t / 5)
        assert there(Growing(0.2, 6), n, t) == list(range(max(1, int(n * share + 1e-9))))
    assert there(Growing(0.2, 1), n, 0) == there(Growing(1.0, 6), n, 0) == list(range(n))


@pytest.mark.parametrize("n", SIZES)
def test_a_window_moves_evenly_to_the_last_examples(n: int) -> None:
    width = max(1, int(0.3 * n + 1e-9))
    for t in range(8):
        first = (n - width) * min(t, 5) // 5
        assert there(Window(0.3, 6), n, t) == list(range(first, first + width))
    assert there(Window(0.3, 1), n, 0) == list(range(n - width, n))


def test_a_round_has_the_rows_that_are_there_by_then_in_an_order_by_the_seed() -> None:
    f = federation(Growing(0.5, 3))
    whole = [set(f.partition.rows(k).tolist()) for k in range(3)]
    sizes = [f.at(t).partition.sizes.tolist() for t in range(4)]
    assert sizes == [[3, 5, 2], [4, 7, 3], [6, 10, 4], [6, 10, 4]]  # a half and three quarters of 6, 10 and 4, and all
    for k in range(3):
        few, all_of_them = f.at(0).partition.rows(k).tolist(), f.at(2).partition.rows(k).tolist()
        assert few == all_of_them[: len(few)]
        assert set(all_of_them) == whole[k]
        assert all_of_them != sorted(all_of_them)
    other = federation(Growing(0.5, 3, seed=1))
    assert other.at(2).partition.rows(1).tolist() != f.at(2).partition.rows(1).tolist()
    assert f.at(2) is f.at(2)  # as long as nobody asks for two others
    assert federation().changes is False
    assert (unchanged := federation()).at(5) is unchanged


def test_each_example_has_a_place_and_a_round_since_which_it_is_there() -> None:
    f = federation(Window(0.5, 3))
    for t in range(3):
        for k in range(3):
            place, since = f.arrived(k, t)
            rows = f.at(t).partition.rows(k)
            order = f.arrives.order(len(f.partition.rows(k)))  # type: ignore[union-attr]
            assert rows.tolist() == f.partition.rows(k)[order][place].tolist()
            assert (since <= t).all()
    assert f.arrived(1, 2)[0].tolist() == [5, 6, 7, 8, 9]  # of ten, the last five
    assert f.arrived(1, 2)[1].tolist() == [1, 1, 2, 2, 2]  # after 0, 2 and 5 have left: two of them since round 2


def test_held_out_examples_do_not_arrive() -> None:
    f = federation(Growing(0.1, 9))
    assert f.at(0).local_test is f.local_test
    assert len(f.at(0).test or ()) == 6


@dataclass(frozen=True)
class Late(Arrival):
    """Client's examples come in the third round."""

    def times(self, place: Any, size: Any) -> Any:
        return np.full_like(place, 2), np.full_like(place, NEVER)


def test_a_client_without_examples_in_a_round_is_refused() -> None:
    with pytest.raises(ValueError, match=r"every client has a training example in every round, .* none in round 1"):
        federation(Late()).at(0)
    assert federation(Late()).at(2).partition.sizes.tolist() == [6, 10, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Growing(0, 5), "grow from a share above 0"),
        (lambda: Growing(0.5, 0), "by round 1 or later"),
        (lambda: Window(1.5, 5), "holds a share above 0 and at most 1"),
        (lambda: LabelDrift(0), "every so many rounds, 1 or more, got 0"),
        (lambda: OffsetDrift(1.0, share=0), "share of clients above 0"),
        (lambda: federation("growing:0.2:5"), "arrives must be a fedloom.data.Arrival"),  # type: ignore[arg-type]
        (lambda: federation(drift=Growing(0.5, 5)), "drift must be a fedloom.data.Drift"),  # type: ignore[arg-type]
        (lambda: federation(Growing(0.5, 5)).pooled(), "data that change are not pooled"),
    ],
)
def test_rules_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---- drift


def test_labels_move_on_every_few_rounds_everywhere_alike() -> None:
    f = federation(drift=LabelDrift(2))
    for t, by in enumerate((0, 0, 1, 1, 2, 2, 0)):
        now = f.at(t)
        assert torch.equal(now.train.y, (f.train.y + by) % 3)
        assert now.test is not None
        assert f.test is not None
        assert torch.equal(now.test.y, (f.test.y + by) % 3)
        assert now.train.x is f.train.x  # not copied
    assert not LabelDrift(2).changes_features


def test_targets_that_are_no_classes_take_no_label_of_another() -> None:
    f = federation(drift=LabelDrift(2))
    for y in (torch.rand(24), torch.rand(24, 3)):
        numbers = replace(f, train=replace(f.train, y=y), test=None)
        with pytest.raises(ValueError, match=r"classes take the label of the next, got targets of torch.float32"):
            numbers.check_changes(1)
        moving = replace(numbers, drift=OffsetDrift(1.0))
        assert torch.equal(moving.at(1).train.y, y)


def test_images_turn_by_quarters() -> None:
    f = federation(drift=RotationDrift(1))
    assert f.at(1).train.x[0, 0].tolist() == [[1, 3], [0, 2]]  # of [[0, 1], [2, 3]]
    assert f.at(2).train.x[0, 0].tolist() == [[3, 2], [1, 0]]
    assert torch.equal(f.at(4).train.x, f.train.x)
    assert torch.equal(f.at(1).train.y, f.train.y)
    vectors = replace(f.train, x=f.train.x.flatten(1))
    with pytest.raises(ValueError, match="square images turn by quarters, got examples of"):
        replace(f, train=vectors, test=None).at(1)


def test_values_grow_and_bytes_end_at_255() -> None:
    f = federation(drift=OffsetDrift(100.0))
    assert f.at(2).train.x.flatten().tolist() == [min(255, v + 200) for v in range(96)]
    assert f.at(2).train.x.dtype == torch.uint8
    floats = replace(f, train=replace(f.train, x=f.train.x.double()), test=None, drift=OffsetDrift(-0.5))
    assert torch.equal(floats.at(3).train.x, floats.train.x - 1.5)


def test_a_share_of_clients_drifts_and_the_global_test_set_stays() -> None:
    f = federation(drift=LabelDrift(1, share=0.5, seed=1))
    drifting = [bool((f.at(1).train.y != f.train.y)[f.partition.rows(k)].all()) for k in range(3)]
    staying = [bool((f.at(1).train.y == f.train.y)[f.partition.rows(k)].all()) for k in range(3)]
    assert [a != b for a, b in zip(drifting, staying, strict=True)] == [True] * 3
    assert any(drifting)
    assert any(staying)
    assert f.local_test is not None
    for k in range(3):  # what it holds out is as what it trains on
        moved = (f.at(1).train.y != f.train.y)[f.local_test.rows(k)]
        assert bool(moved.all()) == drifting[k] == bool(moved.any())
    assert f.at(1).test is not None
    assert f.test is not None
    assert torch.equal(f.at(1).test.y, f.test.y)


def test_clients_of_a_part_drift_by_the_numbers_they_have_in_the_whole() -> None:
    rule = LabelDrift(1, share=0.5, seed=1)
    whole = federation(drift=rule)
    for k in range(3):
        rows = np.concatenate([whole.partition.rows(k), whole.local_test.rows(k)])  # type: ignore[union-attr]
        alone = Federation(whole.train.select(rows), by_lists([range(len(rows))]), drift=rule)
        assert torch.equal(alone.at(1, first=k).train.y, whole.at(1).train.y[rows])


@dataclass(frozen=True)
class Wrong(Drift):
    """Gives floats for bytes."""

    def features(self, x: Tensor, clients: Any, round: int) -> Tensor:
        return x.float()


def test_a_drift_that_changes_types_is_refused() -> None:
    with pytest.raises(ValueError, match="drift keeps shapes and types, and features of Wrong gives"):
        federation(drift=Wrong()).at(1)


def test_rules_are_part_of_the_fingerprint() -> None:
    rules = (None, Growing(0.5, 3), Growing(0.5, 4), Growing(0.5, 3, seed=1), Window(0.5, 3))
    prints = {federation(rule).fingerprint() for rule in rules} | {federation(drift=LabelDrift(2)).fingerprint()}
    assert len(prints) == 6


@pytest.mark.parametrize("share", ["0.1", "0.2", "0.29", "0.3", "0.57", "0.6", "0.7"])
def test_shares_of_examples_are_those_that_are_written(share: str) -> None:
    """Computed as fractions: a product that floating point rounds up or down moves no example into another round."""
    part = Fraction(share)
    for size in (*range(1, 41), 100):
        place, sizes = np.arange(size), np.full(size, size)
        come, left = Window(share=float(share), by=2).times(place, sizes)
        width = max(1, math.floor(size * part))
        assert int((come == 0).sum()) == width, (share, size)
        assert int((left == NEVER).sum()) == width
        for by in (2, 4, 11):
            found, _ = Growing(start=float(share), by=by).times(place, sizes)
            want = [
                0 if k == 0 else math.ceil(min(1, max(0, (Fraction(k + 1, size) - part) / (1 - part))) * (by - 1))
                for k in range(size)
            ]
            assert found.tolist() == want, (share, size, by)
