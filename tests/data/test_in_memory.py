"""Masks from arrays: their shapes, the value that counts nowhere, the bytes they take, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.data.inputs import IGNORED

X = np.zeros((4, 6, 5), np.uint8)
Y = np.arange(4 * 6 * 5).reshape(4, 6, 5) % 3


def test_masks_take_a_byte_of_each_pixel_and_255_counts_nowhere() -> None:
    y = Y.astype(np.uint8)
    y[1, 2] = 255
    made = fl.from_arrays(X, y)
    assert (made.y.dtype, made.num_classes, made.has_pixels, made.has_classes) == (torch.int8, 3, True, False)
    assert (made.y[1, 2] == IGNORED).all()
    assert torch.equal(made.y[0], torch.from_numpy(Y[0]).to(torch.int8))
    assert repr(made) == "Examples(arrays: 4 of 1 x 6 x 5 torch.uint8, 3 classes of pixels)"


@pytest.mark.parametrize(("classes", "kind"), [(127, torch.int8), (128, torch.int16), (40_000, torch.int64)])
def test_more_classes_take_more_bytes(classes: int, kind: torch.dtype) -> None:
    made = fl.from_arrays(X, Y + classes - 3, num_classes=classes, ignored=None)
    assert made.y.dtype == kind
    assert int(made.y.max()) == classes - 1


def test_masks_may_have_a_channel_and_images_theirs_behind() -> None:
    x = np.zeros((4, 6, 5, 3), np.uint8)
    made = fl.from_arrays(x, Y[:, None])
    assert (made.shape, tuple(made.y.shape)) == ((3, 6, 5), (4, 6, 5))


@pytest.mark.parametrize("ignored", [0, 7, -1])
def test_another_value_may_count_nowhere(ignored: int) -> None:
    y = np.where(Y == 2, ignored, Y + 1)
    made = fl.from_arrays(X, y - (ignored == 0), ignored=ignored - (ignored == 0))
    assert (made.y == IGNORED).float().mean() == pytest.approx(1 / 3)
    assert fl.from_arrays(X, np.where(Y == 2, IGNORED, Y), ignored=None).num_classes == 2


def test_rows_are_selected_with_their_masks() -> None:
    made = fl.from_arrays(X, Y)
    assert torch.equal(made.select(np.array([3, 1])).y, made.y[[3, 1]])


@pytest.mark.parametrize(
    ("y", "more", "message"),
    [
        (
            Y[:, :, :4],
            {},
            r"signed integers of the shape of the images, \(N, 6, 5\), got torch.int8 of shape \(4, 6, 4",
        ),
        (np.stack([Y, Y], 1), {}, r"of the shape of the images, \(N, 6, 5\), got .* \(4, 2, 6, 5\)"),
        (np.where(Y == 2, 255, 0), {}, r"two classes or more, got 0 alone beside the value 255, .* masks // 255"),
        (np.where(Y == 2, 255, 0), {"num_classes": 2}, "two classes or more, got 0 alone"),
        (Y, {"ignored": 1, "num_classes": 3}, "counts nowhere is none of the 3 classes, got ignored=1: give another"),
        (np.where(Y == 2, 254, Y), {"num_classes": 3}, r"classes of pixels are in 0..2 .* got 254 in the mask of exam"),
        (Y - 1, {}, r"got -1 in the mask of example 0: raise num_classes, renumber"),
    ],
)
def test_what_is_no_mask_is_refused(y: Any, more: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fl.from_arrays(X, y, **more)


def test_bytes_cannot_say_that_none_counts() -> None:
    with pytest.raises(ValueError, match=r"masks must be signed integers .* got torch.uint8"):
        fl.Examples(torch.zeros(4, 1, 6, 5), torch.zeros(4, 6, 5, dtype=torch.uint8), 2)
