"""Federations: who holds what, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.data import (
    Dataset,
    Examples,
    Federation,
    Normalise,
    Partition,
    by_lists,
    federate,
    iid,
    natural,
    split,
)


def examples(n: int = 40, num_classes: int = 2, width: int = 3) -> Examples:
    x = torch.arange(n * width, dtype=torch.float32).view(n, width)
    return Examples(x, torch.arange(n) % num_classes, num_classes)


def test_federate_holds_out_a_part_of_every_client() -> None:
    train = examples()
    whole = iid(train.y, 4, seed=1)
    federation = federate(train, whole, test=examples(8), test_fraction=0.2, seed=3)
    assert federation.local_test is not None
    assert (federation.num_clients, federation.num_classes) == (4, 2)
    assert federation.partition.sizes.tolist() == [8] * 4
    for k in range(4):
        both = [*federation.partition.rows(k), *federation.local_test.rows(k)]
        assert sorted(both) == sorted(whole.rows(k))


def test_counts_are_those_of_the_training_rows() -> None:
    federation = Federation(examples(), by_lists([[0, 2, 4, 1], [3, 5]]), local_test=by_lists([[6], [7]]))
    assert federation.counts().tolist() == [[3, 1], [0, 2]]
    assert federation.counts().dtype == np.int64


def test_federate_without_a_local_test_set() -> None:
    train = examples()
    whole = iid(train.y, 4, seed=1)
    federation = federate(train, whole, test_fraction=0, public=examples(5))
    assert federation.local_test is None
    assert federation.partition.fingerprint() == whole.fingerprint()
    assert federation.public is not None
    assert len(federation.public) == 5


def test_federate_depends_on_its_seed() -> None:
    train = examples()
    whole = iid(train.y, 4, seed=1)
    prints = [federate(train, whole, seed=s).fingerprint() for s in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


def test_validation_rows_leave_the_test_rows_alone() -> None:
    train = examples(200)
    whole = iid(train.y, 4, seed=1)
    without, with_val = (federate(train, whole, seed=3, val_fraction=fraction) for fraction in (0.0, 0.25))
    assert without.local_val is None
    assert without.local_test is not None
    assert with_val.local_test is not None
    assert with_val.local_val is not None
    assert with_val.local_test.fingerprint() == without.local_test.fingerprint()
    # 50 rows each: 10 to test on, a quarter of the other 40 to validate on, with the classes of the client.
    assert (with_val.partition.sizes.tolist(), with_val.local_val.sizes.tolist()) == ([30] * 4, [10] * 4)
    for part in (with_val.local_test, with_val.local_val):
        ratio = part.counts(train.y, 2) / 10 - whole.counts(train.y, 2) / 50
        assert np.abs(ratio).max() < 0.1
    for k in range(4):
        three = [*with_val.partition.rows(k), *with_val.local_test.rows(k), *with_val.local_val.rows(k)]
        assert sorted(three) == sorted(whole.rows(k))
    assert federate(train, whole, test_fraction=0, val_fraction=0.5).local_test is None
    own_stream = split(without.partition, train.y, 0.25, 3, stream=1)[1]  # that of test rows would cut at like places
    assert with_val.local_val.fingerprint() == own_stream.fingerprint()


def test_test_rows_of_a_seed_are_what_they_were() -> None:
    # Recorded before there were validation rows: a published setting names the same rows for ever.
    federation = federate(examples(), iid(examples().y, 4, seed=1), seed=3)
    assert federation.local_test is not None
    assert federation.local_test.indices.tolist() == [2, 31, 30, 35, 6, 7, 16, 11]


def test_validation_rows_are_another_draw_than_test_rows() -> None:
    train, whole = examples(400), iid(examples(400).y, 1, seed=1)
    test, val = (split(whole, train.y, 0.5, 3, stream)[1].indices for stream in (0, 1))
    assert 60 < len(np.intersect1d(test, val)) < 140


def natural_clients() -> Dataset:
    owners = np.array([0] * 10 + [1] * 10 + [2] * 4 + [3] * 6)
    held_out = np.zeros(30, np.bool_)
    held_out[[2, 5, 12]] = held_out[20:24] = True
    train = examples(30)
    return Dataset(train, train.select(np.flatnonzero(held_out)), owners, held_out)


def federated(dataset: Dataset, **settings: Any) -> Federation:
    assert dataset.owners is not None
    held_out = dataset.held_out
    return federate(dataset.train, natural(dataset.owners), test=dataset.test, held_out=held_out, **settings)


def test_natural_clients_keep_what_their_source_holds_out() -> None:
    federation = federated(natural_clients(), val_fraction=0.25)
    assert federation.local_test is not None
    assert federation.local_val is not None
    assert [federation.local_test.rows(k).tolist() for k in range(3)] == [[2, 5], [12], []]
    assert (federation.partition.sizes.tolist(), federation.local_val.sizes.tolist()) == ([6, 7, 4], [2, 2, 2])
    assert federation.partition.name == "natural, 1 of 4 clients without training rows left out"
    assert federation.test is not None
    assert len(federation.test) == 7


def test_natural_clients_without_held_out_rows_are_split() -> None:
    federation = federated(natural_clients()._replace(held_out=None), test_fraction=0.5)
    assert federation.local_test is not None
    assert (federation.partition.sizes.tolist(), federation.local_test.sizes.tolist()) == ([5, 5, 2, 3],) * 2
    assert federation.partition.name == "natural"


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (np.zeros(29, np.bool_), r"a boolean for each of the 30 training .* got bool of shape \(29,\)"),
        (np.zeros(30), "got float64"),
        (np.ones(30, np.bool_), "needs a row that is not held out"),
    ],
)
def test_held_out_rows_that_do_not_fit(held_out: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        federated(natural_clients()._replace(held_out=held_out))


def test_held_out_rows_are_rows_of_train() -> None:
    with pytest.raises(ValueError, match=r"rows of train, 0\.\.39, got 41"):
        federate(examples(), by_lists([[0, 41]]), held_out=np.zeros(40, np.bool_))


def test_test_examples_are_normalised_as_those_that_train() -> None:
    """Else the global accuracy would be of other inputs than any client trains on, without a word."""
    train, whole = replace(examples(), normalise=Normalise((1.0,), (2.0,))), iid(examples().y, 4, seed=1)
    with pytest.raises(ValueError, match=r"normalised as those that train, .*mean=\(1\.0,\).*got .*mean=\(0\.0,\)"):
        federate(train, whole, test=examples(8))
    assert federate(train, whole, test=replace(examples(8), normalise=train.normalise)).test is not None
    other = examples(8)  # what is stored in another way needs other means
    assert federate(train, whole, test=replace(other, x=other.x.to(torch.uint8))).test is not None


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_val_fraction_is_checked(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"val_fraction must be in \[0, 1\)"):
        federate(examples(), iid(examples().y, 4, seed=1), val_fraction=fraction)


def test_federate_takes_regression_targets() -> None:
    train = Examples(torch.zeros(20, 2), torch.rand(20), num_classes=1)
    federation = federate(train, by_lists([range(10), range(10, 20)]), test_fraction=0.3)
    assert federation.local_test is not None
    assert federation.local_test.sizes.tolist() == [3, 3]


def test_pooled_keeps_every_row_in_its_role() -> None:
    federation = Federation(
        examples(), by_lists([[0, 1], [5]]), examples(4), by_lists([[2], [3]]), by_lists([[9], []]), examples(3)
    )
    one = federation.pooled()
    assert one.local_test is not None
    assert one.local_val is not None
    roles = (one.partition, one.local_test, one.local_val)
    assert [p.rows(0).tolist() for p in roles] == [[0, 1, 5], [2, 3], [9]]
    assert [p.num_clients for p in roles] == [1, 1, 1]
    assert (one.train, one.test, one.public) == (federation.train, federation.test, federation.public)
    assert federate(examples(), by_lists([[0], [1]]), test_fraction=0).pooled().local_test is None


def test_fingerprint_follows_every_part() -> None:
    base = Federation(examples(), by_lists([[0, 1], [5]]))
    others = [
        replace(base, train=replace(examples(), normalise=Normalise((1.0,)))),
        replace(base, partition=by_lists([[0], [1, 5]])),
        replace(base, test=examples(4)),
        replace(base, public=examples(4)),
        replace(base, local_test=by_lists([[2], [3]])),
        replace(base, local_val=by_lists([[2], [3]])),
    ]
    assert len({base.fingerprint(), *(f.fingerprint() for f in others)}) == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_test": by_lists([[1], [9]])}, "a row has one role, got row 1 in partition and local_test"),
        (
            {"local_test": by_lists([[8], [9]]), "local_val": by_lists([[], [8]])},
            "got row 8 in local_test and local_val",
        ),
        ({"local_val": by_lists([[8]])}, "local_val must have the 2 clients of partition, got 1"),
        ({"partition": by_lists([[0], [40]])}, r"partition must hold rows of train, 0\.\.39, got 40"),
        ({"local_test": by_lists([[50], []])}, r"local_test must hold rows of train, 0\.\.39, got 50"),
        ({"partition": by_lists([[0], []])}, "got none for client 1"),
        ({"test": examples(width=2)}, r"test examples must have the shape .* \(3,\), got \(2,\)"),
        ({"public": examples(width=2)}, r"public examples must have the shape .* \(3,\), got \(2,\)"),
        ({"test": examples(num_classes=3)}, "test must have the 2 classes of train, got 3"),
    ],
)
def test_federation_refuses(change: dict[str, Partition | Examples], message: str) -> None:
    parts: dict[str, Partition | Examples] = {"train": examples(), "partition": by_lists([[0, 1], [5]]), **change}
    with pytest.raises(ValueError, match=message):
        Federation(**parts)  # type: ignore[arg-type]


def test_public_examples_may_have_other_classes() -> None:
    federation = Federation(examples(), by_lists([[0], [1]]), public=examples(num_classes=7))
    assert federation.num_classes == 2


def test_labels_of_public_examples_may_be_known() -> None:
    base: dict[str, Any] = {"train": examples(), "partition": by_lists([[0], [1]])}
    plain = Federation(**base, public=examples(4))
    known = Federation(**base, public=examples(4), public_labels=True)
    assert known.pooled().public_labels
    assert plain.fingerprint() != known.fingerprint()
    message = "public examples with labels must be of the clients' 2 classes, got 7: take them out of the training exa"
    with pytest.raises(ValueError, match=message):
        Federation(**base, public=examples(num_classes=7), public_labels=True)
