"""Augmentation: what it does to one image, and that it does so on every engine."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import SGD, Augment, Federation, FedNTD, Local, Model, from_arrays, iid
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.random import uniform
from fedloom.data import Normalise
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked

KEY = torch.tensor(1234567)


def one_by_one(augment: Augment, x: torch.Tensor) -> torch.Tensor:
    """The same augmentation, written for single images with slices."""
    draws, out = uniform(KEY, 0xA6, torch.Size((len(x), 5))), []
    _, _, height, width = x.shape
    for image, u in zip(x, draws, strict=True):
        c = augment.crop
        if augment.padding == "reflect" and c:
            wide = torch.nn.functional.pad(image[None], [c] * 4, mode="reflect")[0]
        else:
            wide = (
                torch.tensor(augment.black).reshape(-1, 1, 1).expand(len(image), height + 2 * c, width + 2 * c).clone()
            )
            wide[:, c : c + height, c : c + width] = image
        top, left = int(u[0] * (2 * c + 1)), int(u[1] * (2 * c + 1))
        image = wide[:, top : top + height, left : left + width].clone()
        if augment.flip and u[2] < 0.5:
            image = image.flip(-1)
        if augment.cutout:
            half, y, z = augment.cutout // 2, int(u[3] * height), int(u[4] * width)
            image[:, max(0, y - half) : max(0, y + half), max(0, z - half) : max(0, z + half)] = 0.0
        out.append(image)
    return torch.stack(out)


@pytest.mark.parametrize(
    "augment",
    [
        Augment(crop=4, flip=True, cutout=16, black=(-1.0, -2.0, -3.0)),
        Augment(crop=4, padding="reflect", flip=True),
        Augment(crop=0, flip=True),
        Augment(crop=0, flip=False, cutout=6),
        Augment(crop=2, flip=False),
    ],
)
def test_it_equals_slicing_single_images(augment: Augment) -> None:
    x = torch.randn(64, 3, 20, 24, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(augment(x, KEY), one_by_one(augment, x), rtol=0, atol=1e-6)


def test_rows_do_not_depend_on_who_else_is_in_the_batch() -> None:
    augment, x = Augment(cutout=4), torch.randn(9, 1, 12, 12)
    assert torch.equal(augment(x, KEY)[:4], augment(x[:4], KEY))
    assert not torch.equal(augment(x, KEY), augment(x, KEY + 1))


def test_every_shift_and_both_sides_come_up_equally_often() -> None:
    u = uniform(KEY, 0xA6, torch.Size((20_000, 5)))
    shifts = torch.bincount((u[:, 0] * 9).long(), minlength=9)
    assert len(shifts) == 9
    assert float((shifts / 20_000 - 1 / 9).abs().max()) < 0.01
    assert abs(float((u[:, 2] < 0.5).float().mean()) - 0.5) < 0.02


def test_black_is_the_normalised_zero() -> None:
    normalise = Normalise(mean=(0.5, 0.25), std=(0.5, 0.125), scale=1 / 255)
    zero = normalise(torch.zeros(1, 2, 1, 1, dtype=torch.uint8), torch.float32)
    assert Augment.of(normalise).black == tuple(zero.flatten().tolist())


@pytest.mark.slow
@pytest.mark.parametrize("compilation", ["none", "trace"])
def test_engines_agree_with_a_teacher_on_augmented_images(compilation: str) -> None:
    rng = np.random.default_rng(0)
    train = from_arrays(rng.integers(0, 256, (46, 8, 8), dtype=np.uint8), rng.integers(0, 3, 46), num_classes=3)
    train = dataclasses.replace(train, augment=Augment.of(train.normalise, crop=2, cutout=3))
    people = Population(
        federation=Federation(train=train, partition=iid(train.y, 4, 0)),
        models={"net": Model(lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 3)))},
        dtype=torch.float64,
    )
    algorithm = FedNTD(local=Local(epochs=2, batch_size=5, optimiser=SGD(lr=0.1)))
    ends = []
    for engine in (Loop(people, algorithm), Stacked(people, algorithm, Options(compilation=compilation))):  # type: ignore[arg-type]
        server = engine.init()
        for t in range(2):
            server = engine.round(server, [0, 1, 3], t)
        ends.append(tree.leaves(server))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    plain = dataclasses.replace(
        people, federation=Federation(dataclasses.replace(train, augment=None), iid(train.y, 4, 0))
    )
    engine = Loop(plain, algorithm)
    unlike = tree.leaves(engine.round(engine.init(), [0, 1, 3], 0))
    assert not torch.equal(unlike[0], ends[0][0])


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="crop and cutout must be >= 0 pixels, got -1 and 0"):
        Augment(crop=-1)
    with pytest.raises(SettingError, match="padding must be one of zero, reflect, got 'wrap'"):
        Augment(padding="wrap")  # type: ignore[arg-type]
    with pytest.raises(
        SettingError, match="reflection mirrors at most 3 pixels of images of 9 x 4, got crop = 4: lower"
    ):
        Augment(crop=4, padding="reflect")(torch.zeros(2, 1, 9, 4), KEY)
    assert Augment(crop=3, padding="reflect")(torch.zeros(2, 1, 9, 4), KEY).shape == (2, 1, 9, 4)
    with pytest.raises(SettingError, match=r"one for each of the images' 1 channels, got \(0\.0, 0\.1, 0\.2\): use"):
        Augment(black=(0.0, 0.1, 0.2))(torch.zeros(2, 1, 9, 9), KEY)
    with pytest.raises(SettingError, match=r"augmentation needs images \[B, C, H, W\], got \[2, 5\]"):
        Augment()(torch.zeros(2, 5), KEY)
