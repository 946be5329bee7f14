"""Residual networks for small images: those of FedNTD and FedAlign, and the usual ResNet-18 of CIFAR-10.

All begin with a 3x3 convolution at full resolution, halve it at the start of every stage but the first and end with
the mean over pixels; images may have any size. They can run their last stage on a part of its channels (`slim`), as
FedAlign asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.models.networks import FeatureClassifier

ResNetNorm = Literal["batch", "batch_untracked", "group"]


class Residual(nn.Module):
    """A residual block: convolutions, each normalised, with ReLU between them, plus the input or a projection of it.

    Args:
        inputs: channels of the input (B, inputs, H, W).
        convolutions: (kernel size, filters, stride) of each.
        norm: see `ResNet`.
    """

    def __init__(self, inputs: int, convolutions: Sequence[tuple[int, int, int]], norm: ResNetNorm) -> None:
        super().__init__()
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        channels, strides = inputs, 1
        for kernel, filters, stride in convolutions:
            self.convolutions.append(_convolution(channels, filters, kernel, stride))
            self.norms.append(_normalisation(filters, norm))
            channels, strides = filters, strides * stride
        self.projection = _convolution(inputs, channels, 1, strides) if (inputs, 1) != (channels, strides) else None
        self.projection_norm = None if self.projection is None else _normalisation(channels, norm)

    def forward(self, x: Tensor, width: float = 1.0) -> Tensor:
        """Return (B, C, H', W'), or with width < 1 only its first channels, from the first channels of every layer."""
        z, last = x, len(self.convolutions) - 1
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            z = _first_channels(convolution, norm, z, width)
            z = F.relu(z) if i < last else z
        if self.projection is not None:
            x = _first_channels(self.projection, self.projection_norm, x, width)
        return F.relu(z + x)


class ResNet(FeatureClassifier):
    """A residual network for small images.

    Args:
        stages: for each stage its blocks, and for each block the (kernel size, filters, stride) of its convolutions.
        stem: filters of the first convolution.
        in_channels: channels of the images (B, in_channels, H, W).
        num_classes: C.
        norm: "batch" for BatchNorm with running statistics; "batch_untracked" for BatchNorm that keeps none and uses
            those of the batch in evaluation too, so that an answer depends on who else is in the batch; "group" for
            GroupNorm with 2 groups (Hsieh et al., ICML 2020).

    Raises:
        ValueError: `norm` is unknown.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[Sequence[tuple[int, int, int]]]],
        stem: int,
        in_channels: int,
        num_classes: int,
        norm: ResNetNorm,
    ) -> None:
        if norm not in ("batch", "batch_untracked", "group"):
            raise ValueError(f"norm must be 'batch', 'batch_untracked' or 'group', got {norm!r}: choose one of these")
        parts: list[nn.Module] = [
            nn.Sequential(_convolution(in_channels, stem, 3, 1), _normalisation(stem, norm), nn.ReLU())
        ]
        channels = stem
        for stage in stages:
            blocks = []
            for convolutions in stage:
                blocks.append(Residual(channels, convolutions, norm))
                channels = convolutions[-1][1]
            parts.append(nn.Sequential(*blocks))
        body = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        super().__init__(body, channels, num_classes)

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the maps before the last stage (B, C1, H1, W1), those after it (B, C2, H2, W2), and the logits."""
        *early, last, pool, flatten = self.body.children()
        for part in early:
            x = part(x)
        after = last(x)
        return x, after, self.classifier(flatten(pool(after)))

    def slim(self, before: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Return the first `width` of the channels of `before`, and what the last stage makes of them.

        Every convolution uses as many of its filters, rounded to a multiple of 8. BatchNorm takes the statistics of
        this batch and moves no running ones.

        Args:
            before: maps before the last stage, (B, C1, H1, W1).
            width: in (0, 1].
        """
        last = list(self.body.children())[-3]
        x = part = before[:, : narrowed(before.shape[1], width)]
        for block in last.children():
            x = block(x, width)
        return part, x


class ResNet10(ResNet):
    """The ResNet-10 of FedNTD's experiments (Lee et al., NeurIPS 2022): four stages of one basic block.

    64, 128, 256 and 512 channels. The paper's BatchNorm keeps no statistics.

    Args:
        in_channels: channels of the images (B, in_channels, H, W).
        num_classes: C.
        norm: see `ResNet`.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10, norm: ResNetNorm = "batch_untracked") -> None:
        super().__init__(_basic(1), 64, in_channels, num_classes, norm)


class ResNet18(ResNet):
    """ResNet-18 (He et al., 2016) in the form usual for CIFAR-10: four stages of two basic blocks.

    64, 128, 256 and 512 channels.

    Args:
        in_channels: channels of the images (B, in_channels, H, W).
        num_classes: C.
        norm: see `ResNet`.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10, norm: ResNetNorm = "batch") -> None:
        super().__init__(_basic(2), 64, in_channels, num_classes, norm)


class ResNet56(ResNet):
    """The ResNet-56 of FedAlign (Mendieta et al., CVPR 2022), from FedML: three stages of six bottlenecks.

    64, 128 and 256 channels. Convolutions begin with He's normal initialisation by
    fan-out, as theirs do; the other networks with PyTorch's default.

    Args:
        in_channels: channels of the images (B, in_channels, H, W).
        num_classes: C.
        norm: see `ResNet`.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10, norm: ResNetNorm = "batch") -> None:
        stages = [
            [[(1, w, 1), (3, w, 2 if stage and not block else 1), (1, 4 * w, 1)] for block in range(6)]
            for stage, w in enumerate((16, 32, 64))
        ]
        super().__init__(stages, 16, in_channels, num_classes, norm)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def narrowed(channels: int, width: float) -> int:
    """Return the number of channels that a slim pass uses, at most all of them.

    It is the nearest multiple of 8, or the next where that loses more than 10 % (the authors' `make_divisible`).
    """
    nearest = max(8, int(channels * width + 4) // 8 * 8)
    return min(channels, nearest + 8 if nearest < 0.9 * channels * width else nearest)


def _basic(blocks: int) -> list[list[list[tuple[int, int, int]]]]:
    """Return four stages of basic blocks."""
    return [
        [[(3, w, 2 if stage and not block else 1), (3, w, 1)] for block in range(blocks)]
        for stage, w in enumerate((64, 128, 256, 512))
    ]


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _normalisation(channels: int, norm: ResNetNorm) -> nn.Module:
    if norm == "group":
        return nn.GroupNorm(2, channels)
    return nn.BatchNorm2d(channels, track_running_stats=norm == "batch")


def _first_channels(convolution: nn.Module, norm: nn.Module | None, x: Tensor, width: float) -> Tensor:
    """Apply a convolution and its normalisation; with width < 1 only their first channels, on those that x has."""
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d | nn.GroupNorm)
    if width == 1.0:
        z: Tensor = norm(convolution(x))
        return z
    n = narrowed(convolution.out_channels, width)
    weight = convolution.weight[:n, : x.shape[1]]
    z = F.conv2d(x, weight, None, convolution.stride, convolution.padding)
    if isinstance(norm, nn.GroupNorm):
        return F.group_norm(z, norm.num_groups, norm.weight[:n], norm.bias[:n], norm.eps)
    return F.batch_norm(z, None, None, norm.weight[:n], norm.bias[:n], training=True, eps=norm.eps)
