"""What a network starts from as messages, of which neither end believes the other."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from fedloom.core.errors import RefusedError
from fedloom.core.model import Model
from fedloom.deploy.initial_weights import PART, Offer, Start, Transfer
from fedloom.engines.message_bytes import pack, unpack, with_checksum
from fedloom.models import LeNet
from fedloom.storage import files


class Tied(nn.Module):
    """Two names of one tensor, BatchNorm's counter, and a buffer that no file has."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.other = nn.Linear(4, 4)
        self.other.weight = self.one.weight
        self.register_buffer("places", torch.arange(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.norm(self.one(x)))  # type: ignore[no-any-return]


def start_of(module: nn.Module, **more: Any) -> tuple[Start, Model]:
    model = Model(module, **more)
    return Start.of(model), model


def test_a_start_holds_the_frozen_tensors_too() -> None:
    start, model = start_of(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), frozen="* !last:1")
    found = safetensors.torch.load(start.data)
    assert set(found) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert all(torch.equal(found[name], tensor) for name, tensor in model.whole(0).items())
    assert start.digest == files.digest(start.data)
    found = safetensors.torch.load(start_of(Tied())[0].data)
    assert "other.weight" not in found
    assert "places" not in found
    assert found["norm.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("module", [nn.Linear(4, 3), Tied(), LeNet(1, 28, 10), nn.Linear(2, 2).double()])
def test_every_start_has_a_size_that_its_network_expects(module: nn.Module) -> None:
    """A float64 network is told and read in float32, as `load_network` reads files."""
    start, model = start_of(module)
    assert Offer.read(start.offer(), model) == Offer(start.digest, len(start.data))


@pytest.mark.parametrize("change", [-(10**9), 10**9, -1, 10**4])
def test_a_start_of_a_size_that_the_network_cannot_have_is_refused(change: int) -> None:
    start, model = start_of(nn.Linear(40, 3))
    size = 4 * 123 + change if change < 0 else len(start.data) + change
    offer = pack({"digest": start.digest, "size": size}, {})
    with pytest.raises(RefusedError, match=rf"the start of Linear has 492 to \d+ bytes here, .* says {size}"):
        Offer.read(offer, model)


@pytest.mark.parametrize(
    ("head", "parts", "words"),
    [
        ({"size": 600}, {}, r"the id of a start is 32 hexadecimal digits, got None"),
        ({"size": 600, "digest": "../" * 10 + "ab"}, {}, r"the id of a start is 32 hexadecimal digits"),
        ({"size": True, "digest": "a" * 32}, {}, "size must be a whole number, got True"),
        ({"size": 1e3, "digest": "a" * 32}, {}, "size must be a whole number, got 1000.0"),
        ({"size": 600, "digest": "a" * 32}, {"bytes": torch.zeros(3)}, "nothing comes with it, got 'bytes'"),
        ({"refused": "you say nonsense"}, {}, "the server does not take this device: you say nonsense"),
    ],
)
def test_what_is_no_offer_is_refused_in_words(head: dict[str, Any], parts: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        Offer.read(pack(head, parts), Model(nn.Linear(40, 3)))
    for data in (b"", b"{}", b"\xff" * 50):
        with pytest.raises(RefusedError, match="the server sends no start: "):
            Offer.read(data, Model(nn.Linear(40, 3)))


def some(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("head", "parts", "words"),
    [
        ({"offset": 10}, {"bytes": some(91)}, "a part of the start has 1 to 90 bytes here, got 91"),
        ({"offset": 10}, {"bytes": some(0)}, "a part of the start has 1 to 90 bytes here, got 0"),
        ({"offset": 10}, {}, "a part of the start has 1 to 90 bytes here, got 0"),
        ({"offset": 9}, {"bytes": some(5)}, "that begins at byte 10 is due, got one from 9"),
        ({"offset": "10"}, {"bytes": some(5)}, "offset must be a whole number, got '10'"),
        ({}, {"bytes": some(5)}, "offset must be a whole number, got None"),
        ({"offset": 10}, {"bytes": torch.zeros(5)}, "bytes are due, got 'bytes'"),
        ({"offset": 10}, {"bytes": some(6).reshape(2, 3)}, "bytes are due, got 'bytes'"),
        ({"offset": 10}, {"bytes": some(5), "more": some(5)}, "bytes are due, got 'more'"),
        ({"offset": 10}, {"bytes": [some(5)]}, "bytes are due, got 'bytes'"),
        ({"refused": "you say nonsense"}, {}, "the server does not take this device: you say nonsense"),
    ],
)
def test_what_is_no_part_is_refused_in_words(head: dict[str, Any], parts: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        Offer("a" * 32, 100).part(pack(head, parts), 10)


def test_a_part_is_bounded_whatever_is_left() -> None:
    offer = Offer("a" * 32, 1 << 40)
    assert len(offer.part(pack({"offset": 0}, {"bytes": some(PART)}), 0)) == PART
    with pytest.raises(RefusedError, match=f"a part of the start has 1 to {PART} bytes here, got {PART + 1}"):
        offer.part(pack({"offset": 0}, {"bytes": some(PART + 1)}), 0)
    with pytest.raises(RefusedError, match=r"a message of \d+ bytes, and at most 5242880 are taken"):
        offer.part(pack({"offset": 0}, {"bytes": some(PART + (1 << 20))}), 0)


def test_damaged_parts_are_refused_or_are_the_bytes_that_are_due() -> None:
    start, model = start_of(nn.Linear(4, 3))
    offer, rng = Offer.read(start.offer(), model), Random(3)
    for _ in range(500):
        data = bytearray(start.part(0)[4:])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            piece = offer.part(with_checksum(bytes(data)), 0)
        except RefusedError:
            continue
        assert len(piece) <= offer.size


# ---- the server's end


def said(has: Any) -> bytes:
    return json.dumps({"start": has}).encode()


def test_a_transfer_sends_what_is_lacking_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.deploy.initial_weights.PART", 100)
    start, model = start_of(nn.Linear(40, 3))
    offer, size = Offer.read(start.offer(), model), len(start.data)
    for begins in (0, 37, size - 1, size):
        transfer, data = Transfer(start), start.data[:begins]
        while (message := transfer.next(said(len(data)))) is not None:
            assert len(unpack(message).parts["bytes"]) <= 100
            data += offer.part(message, len(data))
        assert data == start.data
        assert transfer.sent == size - begins


@pytest.mark.parametrize("has", [-1, 10**6, 2**60, 1.0, True, None, "0", [], {}])
def test_a_device_that_says_that_it_has_what_it_cannot_have_is_refused(has: Any) -> None:
    start, _ = start_of(nn.Linear(40, 3))
    with pytest.raises(RefusedError, match=r"it says that it has .* bytes of the start, and can have 0 to \d+"):
        Transfer(start).next(said(has))


def test_a_device_cannot_ask_for_the_same_bytes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.deploy.initial_weights.PART", 100)
    start, _ = start_of(nn.Linear(40, 3))
    for again in (0, 99, 101, len(start.data)):
        transfer = Transfer(start)
        assert transfer.next(said(0)) is not None
        with pytest.raises(RefusedError, match=f"it says that it has {again} bytes of the start, and can have 100"):
            transfer.next(said(again))


@pytest.mark.parametrize("data", [b"", b"{}x", b"[]", b"\xff", b'{"start": 0' + b" " * 2000 + b"}"])
def test_what_says_nothing_of_a_start_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(RefusedError, match="it has not said how much of the start it has"):
        Transfer(start_of(nn.Linear(40, 3))[0]).next(data)
