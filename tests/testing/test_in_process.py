"""Devices in the process of their server."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedloom import FedAvg
from fedloom.core.errors import CodecError
from fedloom.testing.in_process import InProcess, population_of
from fedloom.testing.subject import Subject


def test_a_device_has_its_clients_rows_and_no_test_set() -> None:
    whole = Subject.of(FedAvg).population()
    with_test = dataclasses.replace(whole.federation, test=whole.federation.public)
    whole = dataclasses.replace(whole, federation=with_test)
    for k in (1, 4):
        own, f = population_of(whole, k).federation, whole.federation
        assert own.test is None
        for mine, its in ((own.partition, f.partition), (own.local_test, f.local_test), (own.local_val, f.local_val)):
            assert torch.equal(own.train.x[mine.rows(0)], f.train.x[its.rows(k)])
        assert len(own.train) == sum(len(part.rows(k)) for part in (f.partition, f.local_test, f.local_val))
        assert own.largest_elsewhere == f.largest
        assert population_of(whole, k).first == k


def test_answers_come_in_their_order_and_who_is_gone_has_none() -> None:
    def gone(data: bytes) -> bytes:
        raise CodecError("wrong")

    wires = InProcess([lambda data: data.upper(), gone, lambda data: None])
    for rank in (1, 2, 3):
        wires.post(rank, b"a")
    wires.post(1, b"b")
    assert (wires.arrivals(), wires.wait([1, 2, 3], None)) == ([1, 2, 3], [1, 2])
    assert [bytes(wires.take(1)) for _ in range(2)] == [b"A", b"B"]
    with pytest.raises(EOFError):
        wires.take(2)
    assert wires.failures == {2: "wrong"}
    assert (wires.come(lambda data: data), wires.arrivals()) == (4, [1, 2, 3, 4])
