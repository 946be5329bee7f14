"""Token ids of any width, targets for each place, and several inputs stored as one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.data.inputs import IGNORED, Inputs, Tokens, next_tokens, pack

IDS = np.array([[5, 7, 2, 0], [3, 9, 0, 0], [4, 4, 4, 4]])


@pytest.mark.parametrize("kind", ["int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_of_any_width_are_token_ids_as_they_are(kind: str) -> None:
    examples = fl.from_arrays(IDS.astype(kind), np.array([0, 1, 0]))
    given = examples.normalise(examples.x, torch.float32)
    assert examples.has_tokens
    assert given.dtype == torch.int64
    assert given.tolist() == IDS.tolist()


def test_large_ids_are_exact() -> None:
    ids = np.array([[2**31 - 1, 2**24 + 1], [1, 2]], np.int32)
    examples = fl.from_arrays(ids, np.array([0, 1]))
    assert examples.normalise(examples.x, torch.float32).tolist() == ids.tolist()


def test_bytes_are_pixels_unless_said_to_be_tokens() -> None:
    ids = IDS.astype(np.uint8)
    assert not fl.from_arrays(ids, np.array([0, 1, 0])).has_tokens
    examples = fl.from_arrays(ids, np.array([0, 1, 0]), normalise=Tokens())
    assert examples.normalise(examples.x, torch.float32).tolist() == IDS.tolist()


def test_next_tokens_end_at_padding() -> None:
    assert next_tokens(torch.from_numpy(IDS)).tolist() == [
        [7, 2, IGNORED, IGNORED], [9, IGNORED, IGNORED, IGNORED], [4, 4, 4, IGNORED],
    ]  # fmt: skip
    assert next_tokens(torch.from_numpy(IDS), None)[1].tolist() == [9, 0, 0, IGNORED]


def test_several_inputs_come_back_as_they_were() -> None:
    numbers = np.array([[0.5, 1.25], [1.5, 2.0], [0.1, -3.0]], np.float32)
    truths = IDS != 0
    for given in ({"a": IDS, "b": truths}, {"a": IDS, "b": truths, "c": numbers}):
        examples = fl.from_arrays(given, np.array([0, 1, 0]))
        assert isinstance(examples.normalise, Inputs)
        found = examples.normalise.unpack(examples.normalise(examples.x, torch.float64))
        kinds = {"a": torch.int64, "b": torch.bool, "c": torch.float64}
        for name, values in given.items():
            assert found[name].dtype == kinds[name]
            assert torch.equal(found[name], torch.from_numpy(values).to(kinds[name]))
    assert fl.from_arrays({"a": IDS, "b": truths}, np.array([0, 1, 0])).x.dtype == torch.uint8


@pytest.mark.parametrize(
    ("x", "y", "more", "message"),
    [
        (IDS - 5, [0, 1, 0], {}, r"token ids are 0 or more, got -5 in example 0: number tokens from 0"),
        (IDS + 0.5, [0, 1, 0], {"normalise": Tokens()}, r"token ids of Tokens are integers, got 5.5: x.astype"),
        (IDS, IDS[:, :3], {}, r"of the shape of the tokens, \(N, 4\), got torch.int64 of shape \(3, 3\)"),
        (
            IDS,
            IDS,
            {"num_classes": 9},
            r"vocabulary of num_classes=9 tokens are in 0..8, or -100 .* got 9 in example 1",
        ),
        (IDS[:, :, None], [0, 1, 0], {}, r"x must be uint8 or floating point, got torch.int64: .*Tokens\(\)"),
        ({"a": IDS, "b": IDS[:2]}, [0, 1, 0], {}, r"same number of examples each, .* got a \(3, 4\), b \(2, 4\)"),
        ({"a": IDS + 2**24, "b": IDS * 0.5}, [0, 1, 0], {}, r"at most 16,777,216, got 16,777,225 in 'a': renumber"),
        ({"a": IDS}, [0, 1, 0], {"normalise": fl.data.Normalise()}, r"several inputs by name are given as they are"),
    ],
)
def test_what_is_no_token_is_refused(x: Any, y: Any, more: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fl.from_arrays(x, np.asarray(y), **more)


def test_padding_is_an_id() -> None:
    with pytest.raises(ValueError, match=r"padding is the token id that fills shorter sequences, 0 or more, got -1"):
        Tokens(-1)
    with pytest.raises(ValueError, match="got none"):
        pack({})
