"""Examples and their normalisation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from fedloom.data import Dataset, Examples, Normalise, from_arrays

CIFAR = Normalise((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616), 1 / 255)


def features(n: int = 6, d: int = 3) -> Tensor:
    return torch.linspace(-1, 1, n * d).view(n, d)


# ---- Normalise


def test_one_value_serves_every_element() -> None:
    x = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    out = Normalise((0.2,), (0.5,), 1 / 255)(x, torch.float64)
    torch.testing.assert_close(out, torch.tensor([[-0.4, 0.0, 1.6]], dtype=torch.float64))


@pytest.mark.parametrize("leading", [(), (4,), (2, 4)])
def test_channels_are_normalised_for_any_leading_axes(leading: tuple[int, ...]) -> None:
    x = torch.randint(0, 256, (*leading, 3, 5, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    out = CIFAR(x, torch.float64)
    for c in range(3):
        expected = (x[..., c, :, :].double() / 255 - CIFAR.mean[c]) / CIFAR.std[c]
        torch.testing.assert_close(out[..., c, :, :], expected)


def test_normalise_works_under_vmap() -> None:
    x = torch.arange(2 * 4 * 3 * 2 * 2, dtype=torch.uint8).view(2, 4, 3, 2, 2)
    mapped = torch.func.vmap(lambda images: CIFAR(images, torch.float32))(x)
    torch.testing.assert_close(mapped, CIFAR(x, torch.float32), rtol=0, atol=0)


@pytest.mark.parametrize("identity", [Normalise(), Normalise((0.0,) * 3, (1.0,) * 3)])
def test_identity_copies_nothing(identity: Normalise) -> None:
    x = torch.rand(2, 3, 4, 4)
    assert identity(x, torch.float32) is x
    assert identity(x, torch.float64).dtype == torch.float64


def test_normalise_is_a_static_value() -> None:
    assert hash(Normalise((0.1,), (0.2,))) == hash(Normalise((0.1,), (0.2,)))
    assert Normalise((0.1,), (0.2,)) != Normalise((0.1,), (0.3,))


@pytest.mark.parametrize(
    ("mean", "std", "scale", "message"),
    [
        ((0.0, 0.0), (1.0,), 1.0, "got 2 and 1"),
        ((), (), 1.0, "got 0 and 0"),
        ((0.0,), (0.0,), 1.0, r"std positive .* std=\(0\.0,\)"),
        ((float("nan"),), (1.0,), 1.0, "must be finite"),
        ((0.0,), (1.0,), 0.0, "scale not 0"),
    ],
)
def test_normalise_refuses(mean: tuple[float, ...], std: tuple[float, ...], scale: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Normalise(mean, std, scale)


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 3)])
def test_channels_must_match(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="3 means normalise images"):
        CIFAR(torch.zeros(shape), torch.float32)


# ---- Examples


def test_examples_select_copies_rows_in_order() -> None:
    examples = Examples(features(), torch.tensor([0, 1, 2, 0, 1, 2]), 4, Normalise((0.5,), (2.0,)), "toy")
    picked = examples.select(np.array([5, 0]))
    torch.testing.assert_close(picked.x, examples.x[[5, 0]])
    assert picked.y.tolist() == [2, 0]
    assert (picked.num_classes, picked.normalise, picked.name) == (4, examples.normalise, "toy")
    picked.x.zero_()
    assert examples.x[0, 0] == -1
    assert len(examples.select(torch.tensor([], dtype=torch.int64))) == 0


def test_examples_shape_and_counts() -> None:
    examples = Examples(features(), torch.tensor([0, 1, 2, 0, 1, 1]), 4)
    assert (len(examples), examples.shape) == (6, (3,))
    counts = examples.class_counts()
    assert counts.tolist() == [2, 3, 1, 0]
    assert counts.dtype == np.int64


def test_examples_to_a_device_keep_everything_else() -> None:
    examples = Examples(features(), torch.arange(6), 6, Normalise((0.5,)), "toy")
    moved = examples.to("cpu")
    assert (moved.fingerprint(), moved.name, moved.x.device.type) == (examples.fingerprint(), "toy", "cpu")


def test_fingerprint_follows_the_content() -> None:
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    base = Examples(features(), y, 3)
    assert base.fingerprint() == Examples(features(), y.clone(), 3, name="other").fingerprint()
    changed = features()
    changed[5, 2] += 1e-6
    others = [
        Examples(changed, y, 3),
        Examples(features(), y.flip(0), 3),
        Examples(features(), y, 4),
        Examples(features().double(), y, 3),
        Examples(features().view(6, 3, 1), y, 3),
        Examples(features(), y, 3, Normalise((0.5,))),
    ]
    assert len({base.fingerprint(), *(e.fingerprint() for e in others)}) == 7


def test_fingerprint_sees_values_not_strides() -> None:
    y = torch.zeros(3, dtype=torch.int64)
    x = features(3, 3)
    assert Examples(x.t(), y, 1).fingerprint() == Examples(x.t().contiguous(), y, 1).fingerprint()
    assert Examples(x.t(), y, 1).fingerprint() != Examples(x, y, 1).fingerprint()


def test_float_targets_have_no_classes() -> None:
    examples = Examples(features(), torch.rand(6), 1)
    with pytest.raises(ValueError, match=r"need int64 labels, got targets of type torch\.float32"):
        examples.class_counts()


@pytest.mark.parametrize(
    ("x", "y", "num_classes", "message"),
    [
        (
            features(),
            torch.zeros(5, dtype=torch.int64),
            2,
            r"shapes \(6, 3\) and \(5,\): give the labels of these examples",
        ),
        (torch.zeros(6), torch.zeros(6, dtype=torch.int64), 2, r"single features as \(N, 1\)"),
        (features().long(), torch.zeros(6, dtype=torch.int64), 2, r"got torch\.int64"),
        (features() / 0, torch.zeros(6, dtype=torch.int64), 2, "got 6 examples with NaN"),
        (features(), torch.full((6,), float("nan")), 1, "targets y must be finite"),
        (features(), torch.zeros(6, dtype=torch.int32), 2, r"got torch\.int32"),
        (features(), torch.zeros(6, 2, dtype=torch.int64), 2, r"argmax\(1\)"),
        (features(), torch.zeros(6, 1, dtype=torch.int64), 2, r"of shape \(6, 1\): pass y\.ravel\(\)$"),
        (features(), torch.zeros(6, 1, 1, dtype=torch.int32), 2, r"of shape \(6, 1, 1\): pass y\.ravel\(\)$"),
        (features(), torch.arange(6), 3, r"must be in 0\.\.2 for num_classes=3, got 0\.\.5"),
        (features(), torch.arange(6) - 1, 9, r"got -1\.\.4: renumber"),
        (features(), torch.zeros(6, dtype=torch.int64), 0, "num_classes must be at least 1, got 0"),
        (features(), torch.zeros(6, dtype=torch.int64), 65537, "num_classes must be at most 65536, got 65537: number"),
    ],
)
def test_examples_refuse(x: Tensor, y: Tensor, num_classes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Examples(x, y, num_classes)


# ---- from_arrays


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 28, 28), (1, 28, 28)),
        ((5, 32, 30, 3), (3, 32, 30)),
        ((5, 28, 28, 1), (1, 28, 28)),
        ((5, 3, 32, 32), (3, 32, 32)),
        ((5, 3, 8, 3), (3, 8, 3)),
    ],
)
def test_images_become_channel_first(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = np.random.RandomState(0).randint(0, 256, shape, dtype=np.uint8)
    examples = from_arrays(x, np.arange(5))
    assert (examples.shape, examples.x.dtype, examples.normalise) == (expected, torch.uint8, Normalise(scale=1 / 255))
    if shape[-1] == 3 and shape[1] != 3:
        np.testing.assert_array_equal(examples.x[2, 1].numpy(), x[2, :, :, 1])


def test_float_features_stay_as_they_are() -> None:
    x = np.random.RandomState(0).rand(4, 7)
    examples = from_arrays(x, np.array([0, 2, 1, 0], np.uint8))
    np.testing.assert_array_equal(examples.x.numpy(), x)
    assert (examples.num_classes, examples.normalise, examples.y.dtype) == (3, Normalise(), torch.int64)


@pytest.mark.parametrize(
    "x",
    [
        np.frombuffer(bytes(range(12)), np.uint8).reshape(3, 4),
        np.arange(12, dtype=np.uint8).reshape(3, 4)[::-1],
        np.arange(12, dtype=">f4").reshape(3, 4),
    ],
    ids=["read-only", "reversed", "big-endian"],
)
def test_any_memory_layout_is_taken(x: npt.NDArray[np.generic]) -> None:
    np.testing.assert_array_equal(from_arrays(x, torch.tensor([0, 1, 0])).x.numpy(), x)


def test_float_targets_count_their_outputs() -> None:
    assert from_arrays(features(), np.zeros(6, np.float32)).num_classes == 1
    assert from_arrays(features(), np.zeros((6, 4), np.float32)).num_classes == 4


@pytest.mark.parametrize(
    ("y", "remedy"),
    [
        (np.array([[0.0], [1.0], [2.0]]), r"from_arrays y\.astype\(int\)\.ravel\(\) \[FL-DATA-026\]$"),
        (np.eye(3), r"float64 of shape \(3, 3\) that hold them: give from_arrays y\.argmax\(1\) \[FL-DATA-026\]$"),
    ],
)
def test_labels_in_floating_point_are_told_at_once(y: npt.NDArray[np.float64], remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        from_arrays(np.zeros((3, 2)), y)
    assert from_arrays(np.zeros((3, 2)), y - 0.5).y.is_floating_point()
    assert from_arrays(np.zeros((3, 2)), 2 * np.eye(3)).num_classes == 3


def test_num_classes_is_needed_without_labels() -> None:
    with pytest.raises(ValueError, match="num_classes is needed"):
        from_arrays(np.zeros((0, 3), np.float32), np.zeros(0, np.int64))
    empty = from_arrays(np.zeros((0, 3), np.float32), np.zeros(0, np.int64), num_classes=2)
    assert (len(empty), empty.class_counts().tolist(), len(empty.fingerprint())) == (0, [0, 0], 16)


@pytest.mark.parametrize("y", [[0, 5, 10], [10**9, 0, 1], [1, 2, 2]])
def test_classes_without_examples_must_be_meant(y: list[int]) -> None:
    counted = rf"{len(set(y))} different ones up to {max(y)}, without [012]( [(].* in example .*[)])?"
    message = rf"each with an example, got {counted}: give num_classes if .* renumber"
    with pytest.raises(ValueError, match=message):
        from_arrays(features(3), np.array(y))
    if max(y) < 100:
        assert from_arrays(features(3), np.array(y), num_classes=11).num_classes == 11


@pytest.mark.parametrize("kind", [np.longdouble, np.complex128, object, "datetime64[s]", "U3"])
def test_arrays_hold_real_numbers(kind: npt.DTypeLike) -> None:
    with pytest.raises(ValueError, match=r"real numbers of at most 64 bits, got .*: convert with astype"):
        from_arrays(np.ones((3, 2)).astype(kind), np.arange(3))
    with pytest.raises(ValueError, match="real numbers of at most 64 bits"):
        from_arrays(features(3), np.arange(3).astype(kind))


def test_masked_values_are_not_taken_for_values() -> None:
    values = np.ma.masked_equal(np.array([[1.0, -999.0], [2.0, 3.0]]), -999.0)
    with pytest.raises(ValueError, match=r"a value in every place, got 1 that are masked: fill them"):
        from_arrays(values, np.array([0, 1]))
    with pytest.raises(ValueError, match="got 2 that are masked"):
        from_arrays(np.zeros((2, 2)), np.ma.masked_all(2, np.int64))
    assert from_arrays(np.ma.array(np.ones((2, 2))), np.array([0, 1])).x.tolist() == [[1.0, 1.0]] * 2


# ---- data sets


def both(owners: npt.NDArray[np.int64] | None = None) -> Dataset:
    """Eight training examples 0..7 and three test examples 100..102, of three classes."""
    x = torch.cat([torch.arange(8), torch.arange(100, 103)]).to(torch.uint8)[:, None]
    y = torch.arange(11) % 3
    normalise = Normalise((0.5,), (0.5,), 1 / 255)
    train, test = (Examples(x[part], y[part], 3, normalise, "numbers") for part in (slice(8), slice(8, None)))
    return Dataset(train, test, owners)


def test_merged_puts_the_test_examples_behind_the_training_ones() -> None:
    merged = both().merged()
    assert merged.test is None
    assert merged.train.x[:, 0].tolist() == [*range(8), 100, 101, 102]
    assert merged.train.y.tolist() == [k % 3 for k in range(11)]
    assert (merged.train.normalise, merged.train.name) == (both().train.normalise, "numbers")


def test_merging_refuses_what_has_no_test_set_or_has_owners() -> None:
    with pytest.raises(ValueError, match="takes a training and a test set, got numbers without a test set"):
        both().merged().merged()
    with pytest.raises(ValueError, match=r"without natural clients, .* got numbers: its partition 'natural'"):
        both(np.arange(8)).merged()


@pytest.mark.parametrize("change", [{"normalise": Normalise((0.4,), (0.5,), 1 / 255)}, {"x": torch.rand(3, 1)}])
def test_merging_refuses_examples_that_networks_would_see_in_two_ways(change: dict[str, Any]) -> None:
    dataset = both()
    assert dataset.test is not None
    with pytest.raises(
        ValueError, match=r"stored and normalised alike, got torch\.uint8 with Normalise\(mean=\(0\.5,\)"
    ):
        dataset._replace(test=replace(dataset.test, **change)).merged()


def test_a_data_set_selects_rows_with_all_that_belongs_to_them() -> None:
    chosen = both(np.arange(8) // 2)._replace(held_out=np.arange(8) > 5).select(np.array([7, 2]))
    assert chosen.train.x[:, 0].tolist() == [7, 2]
    assert chosen.owners is not None
    assert chosen.held_out is not None
    assert (chosen.owners.tolist(), chosen.held_out.tolist()) == ([3, 1], [True, False])
    assert chosen.test is not None
    assert len(chosen.test) == 3


def test_a_mean_alone_is_taken_off() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert Normalise((2.0,))(x, torch.float32).tolist() == [[-1.0, 0.0]]
    assert Normalise()(x, torch.float32) is x
