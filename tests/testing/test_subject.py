"""What the battery disturbs of a run, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import torch

from fedloom import FedAvg
from fedloom.testing.subject import OtherTestRows, Poisoned, Subject

SUBJECT = Subject.of(FedAvg)


def test_all_examples_but_a_clients_own_are_poisoned() -> None:
    population = SUBJECT.population(kind=Poisoned, client=3)
    f = population.federation
    mine = np.concatenate([part.rows(3) for part in (f.partition, f.local_test, f.local_val) if part is not None])
    x = population.held_out_batches((3,), "test", 0).x.reshape(len(f.train), -1)
    assert torch.nonzero(x.isfinite().all(1)).flatten().tolist() == sorted(mine.tolist())
    assert torch.equal(x[mine], f.train.x[mine].to(x.dtype))


def test_clients_are_ragged_and_every_other_one_validates() -> None:
    f = SUBJECT.population().federation
    sizes = [[len(part.rows(k)) for k in range(6)] for part in (f.partition, f.local_test, f.local_val)]
    assert sizes == [[5, 9, 6, 11, 7, 8], [3] * 6, [0, 2] * 3]


def test_test_rows_alone_have_other_features_and_labels() -> None:
    plain, other = (SUBJECT.population(**more).federation for more in ({}, {"kind": OtherTestRows}))
    rows = np.concatenate([plain.local_test.rows(k) for k in range(plain.num_clients)])
    rest = np.setdiff1d(np.arange(len(plain.train)), rows)
    assert (plain.train.y[rows] != other.train.y[rows]).all()
    assert (plain.train.x[rows] != other.train.x[rows]).all()
    for part in ("x", "y"):
        assert torch.equal(getattr(plain.train, part)[rest], getattr(other.train, part)[rest])
