"""Federations: who holds what, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom.data import Examples, Federation, Normalise, Partition, by_lists, federate, iid


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
