"""Networks of torchvision by name, where it is installed: `torchvision:resnet18`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from fedloom.models.ktpfl_networks import ThreeChannels
from fedloom.wording import arguments, install

PREFIX = "torchvision:"

TorchvisionNorm = Literal["batch", "group"]
_INSTALL = (
    f"networks of torchvision need it: {install('vision')}, where torch is the CPU's build from the same "
    "place as torch, https://download.pytorch.org/whl/cpu"
)


@dataclass(frozen=True)
class FromTorchvision:
    """A network of torchvision and what is said behind its name.

    `norm`: "batch", as it is there, or "group": each BatchNorm becomes a GroupNorm with as many affine parameters.
    """

    name: str
    norm: TorchvisionNorm = "batch"


def named(text: str) -> FromTorchvision:
    """Read `torchvision:resnet18` or `torchvision:resnet18?norm=group`.

    Raises:
        ValueError: something else is said behind the name.
    """
    name, question, written = text.removeprefix(PREFIX).partition("?")
    if not question:
        return FromTorchvision(name)
    said = arguments("a network of torchvision", written, {"norm": TorchvisionNorm}, "torchvision:resnet18?norm=group")
    return FromTorchvision(name, **said)


def torchvision_network(which: FromTorchvision, channels: int, num_classes: int) -> nn.Module:
    """Return a new network for images with so many channels; grey ones are repeated over the three that it takes.

    It begins as torchvision begins it, untrained: files of weights are read by `start`.

    Raises:
        ValueError: torchvision is not there, has no such network, or the network takes other images.
    """
    try:
        from torchvision import models  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except (ImportError, OSError, RuntimeError) as error:  # a build for another torch raises the last two
        raise ValueError(f"{_INSTALL}; got {type(error).__name__}: {str(error)[:80]}") from error
    known = list(models.list_models(module=models))
    if which.name not in known:
        close = [name for name in known if name.startswith(which.name[:4])] or known
        raise ValueError(
            f"torchvision has no network {which.name!r} for images: choose one, such as {', '.join(close[:8])}"
        )
    if channels not in (1, 3):
        raise ValueError(f"networks of torchvision take images of 1 or 3 channels, got {channels}: choose channels")
    # auxiliary classifiers answer with several outputs in training
    more: dict[str, Any] = {"googlenet": {"aux_logits": False, "init_weights": True},
                            "inception_v3": {"aux_logits": False, "init_weights": True}}  # fmt: skip
    network: nn.Module = models.get_model(which.name, weights=None, num_classes=num_classes, **more.get(which.name, {}))
    if which.norm == "group":
        network = with_group_norm(network)
    if channels == 1:
        network.register_forward_pre_hook(_repeated)
    return network


def _repeated(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (ThreeChannels()(inputs[0]), *inputs[1:])


def with_group_norm(network: nn.Module, groups: int = 32) -> nn.Module:
    """Replace each BatchNorm of a network by GroupNorm (Wu and He, 2018), and return the network itself.

    Scale and shift are the same tensors under the same names, so a file of the network with BatchNorm starts one with
    GroupNorm; running statistics fall away.

    Args:
        network: any module.
        groups: of channels, the greatest common divisor of this and the number of channels.

    Raises:
        ValueError: `groups` is less than 1, or there is no BatchNorm.
    """
    if groups < 1:
        raise ValueError(f"groups must be at least 1, got {groups}: Wu and He (2018) take 32")
    found = False
    for parent in [*network.modules()]:
        for name, part in [*parent.named_children()]:
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                made = nn.GroupNorm(math.gcd(groups, part.num_features), part.num_features, part.eps, part.affine)
                if part.affine:
                    made.weight, made.bias = part.weight, part.bias
                setattr(parent, name, made)
                found = True
    if not found:
        raise ValueError("a network without BatchNorm has none to replace: leave norm=group out")
    return network
