"""Networks of torchvision by name, with a stand-in for the library and, where it is installed, itself."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom import Model
from fedloom.models import Reads, build, with_group_norm


class Small(nn.Module):
    """As torchvision's, with a BatchNorm inside a part."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU())
        self.fc = nn.Linear(12, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.features(x).mean((2, 3)))
        return out


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    models: Any = ModuleType("torchvision.models")
    models.list_models = lambda module=None: ["resnet18", "resnet34", "vgg11"]
    models.get_model = lambda name, weights, num_classes, **more: Small(num_classes)
    whole: Any = ModuleType("torchvision")
    whole.models = models
    monkeypatch.setitem(sys.modules, "torchvision", whole)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


@pytest.mark.usefixtures("library")
def test_a_network_by_name_has_the_classes_of_the_data() -> None:
    model = Model(lambda: build("torchvision:resnet18", (3, 8, 8), 7), name="torchvision:resnet18")
    assert model(model.init(0), torch.rand(2, 3, 8, 8)).shape == (2, 7)
    assert "features.1.running_mean" in model.buffers


@pytest.mark.usefixtures("library")
def test_grey_images_are_repeated() -> None:
    model = Model(lambda: build("torchvision:resnet18", (1, 8, 8), 7))
    weights, x = model.init(0), torch.rand(2, 1, 8, 8)
    coloured = Model(lambda: build("torchvision:resnet18", (3, 8, 8), 7))
    assert torch.equal(model(weights, x), coloured(weights, x.expand(-1, 3, -1, -1)))


@pytest.mark.usefixtures("library")
def test_group_norm_takes_the_place_of_batch_norm_under_the_same_names() -> None:
    torch.manual_seed(0)
    grouped: Any = build("torchvision:resnet18?norm=group", (3, 8, 8), 7)
    assert isinstance(grouped.features[1], nn.GroupNorm)
    assert grouped.features[1].num_groups == 4  # the greatest common divisor of 32 and 12
    batched = build("torchvision:resnet18?norm=batch", (3, 8, 8), 7)
    kept = {n: t for n, t in batched.state_dict().items() if "running" not in n and "num_batches" not in n}
    grouped.load_state_dict(kept)
    assert [*grouped.state_dict()] == [*kept]


def test_group_norm_of_one_group_by_hand() -> None:
    network = with_group_norm(nn.Sequential(nn.BatchNorm2d(2)), groups=1)
    x = torch.tensor([[[[1.0, 2.0]], [[3.0, 6.0]]]])
    expected = (x - 3.0) / (torch.tensor(3.5) + 1e-5).sqrt()
    assert torch.allclose(network(x), expected)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "torchvision:resnet19",
            (3, 8, 8),
            "torchvision has no network 'resnet19' for images: choose one, such as res",
        ),
        (
            "torchvision:resnet18?norm=layer",
            (3, 8, 8),
            "norm of a network of torchvision is batch or group, got",
        ),
        ("torchvision:resnet18", (4, 8, 8), "take images of 1 or 3 channels, got 4"),
        ("torchvision:resnet18", (20,), "a convolutional network needs images"),
    ],
)
def test_what_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        build(name, shape, 7)
    assert message in str(error.value)


def test_tokens_are_no_images() -> None:
    with pytest.raises(
        ValueError, match="torchvision:resnet18 takes images, got token ids: networks of these are lstm"
    ):
        build("torchvision:resnet18", (80,), 7, Reads(9))


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ValueError, match=r"pip install '<PATH>\[vision\]', where <PATH> is fedloom's"):
        build("torchvision:resnet18", (3, 8, 8), 7)


def test_a_network_without_batch_norm_has_none_to_replace() -> None:
    with pytest.raises(ValueError, match="leave norm=group out"):
        with_group_norm(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="groups must be at least 1, got 0"):
        with_group_norm(nn.BatchNorm2d(2), 0)


def test_the_library_itself() -> None:
    try:
        import torchvision  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"torchvision is not here: {error}")
    for text in ("torchvision:resnet18?norm=group", "torchvision:mobilenet_v3_small"):
        model = Model(lambda text=text: build(text, (1, 64, 64), 7))  # type: ignore[misc]
        assert model(model.init(0), torch.rand(2, 1, 64, 64)).shape == (2, 7)
