"""The U-Net: sizes, what an answer depends on, its two parts, and stacks against the loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedloom as fl
from fedloom.models import UNet, build
from masks_made import CLASSES, federation


@pytest.mark.parametrize("size", [(8, 8), (9, 14), (3, 4)])
def test_images_of_any_size_have_an_answer_at_each_pixel(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    network, x = UNet(2, 3, width=4, depth=3).double(), torch.randn(2, 2, *size, dtype=torch.float64)
    out = network(x)
    assert out.shape == (2, 3, *size)
    whole = F.pad(x, (0, -size[1] % 8, 0, -size[0] % 8))
    assert torch.equal(network(whole)[..., : size[0], : size[1]], out)


def test_a_pixel_sees_what_is_beside_it_at_every_scale_and_its_own_place() -> None:
    """The gradient of one answer by the image reaches far, and is largest near the pixel."""
    torch.manual_seed(0)
    x = torch.randn(1, 1, 32, 32, requires_grad=True)
    UNet(1, 2, width=8)(x)[0, 0, 16, 16].backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    slope = x.grad[0, 0].abs()
    assert slope[16 - 10, 16] > 0
    assert slope[14:19, 14:19].mean() > 10 * slope.mean()


def test_features_and_classifier_are_its_two_parts() -> None:
    torch.manual_seed(0)
    network, x = build("unet?width=8", (1, 12, 12), 5), torch.randn(3, 1, 12, 12)
    assert isinstance(network, UNet)
    z = network.features(x)
    assert z.shape == (3, 12, 12, 8)
    assert torch.equal(network.classifier(z).permute(0, 3, 1, 2), network(x))


@pytest.mark.parametrize("wrong", [{"width": 6}, {"width": 0}, {"depth": 0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a width that is a multiple of 4, its groups of normalisation, and a depth"):
        UNet(1, 2, **wrong)


@pytest.mark.slow
def test_a_stack_is_the_loop_and_heads_stay_at_home() -> None:
    """FedRep keeps the classifier on the client; stacks train each client's own weights at once."""
    local = fl.Local(optimiser=fl.SGD(lr=0.1), batch_size=5, epochs=1)
    found = []
    for engine in ("loop", "stacked"):
        settings = fl.RunSettings(rounds=2, cohort_size=3, dtype="float64", engine=engine)  # type: ignore[arg-type]
        method = fl.FedRep(local=local, personal_layers="classifier.*")
        history = fl.run(
            method, federation(), lambda: UNet(1, CLASSES, width=4, depth=1), settings, task=fl.Segmentation()
        )
        found.append([*history.series("train_loss"), *history.series("personal_mean_iou")])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
