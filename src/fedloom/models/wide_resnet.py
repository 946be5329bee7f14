"""Wide residual networks (Zagoruyko and Komodakis, BMVC 2016), of which DENSE mixes two with other architectures."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.models.networks import FeatureClassifier


class PreActivation(nn.Module):
    """A block: BatchNorm, ReLU and a convolution 3x3, twice, plus the input.

    Where the number of channels changes, the first BatchNorm and ReLU come before both branches, and the input passes
    a convolution 1x1 without normalisation.

    Args:
        inputs: channels of the input (B, inputs, H, W).
        outputs: channels of the output.
        stride: of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, outputs, H / stride, W / stride)."""
        z = F.relu(self.norm1(x))
        kept = x if self.shortcut is None else self.shortcut(z)
        added: Tensor = kept + self.conv2(F.relu(self.norm2(self.conv1(z))))
        return added


class WideResNet(FeatureClassifier):
    """WRN-D-k for small images: a convolution, three stages of (D - 4) / 6 blocks, BatchNorm, ReLU, mean over pixels.

    16 k, 32 k and 64 k channels; the second and third stage halve the resolution. Convolutions begin
    normal with variance 2 / (k^2 outputs), k their width, as in the code of DENSE's authors, where biases of the
    classifier begin at 0; here they begin as PyTorch draws them.

    Args:
        depth: D, 6 n + 4.
        width: k.
        in_channels: channels of the images (B, in_channels, H, W).
        num_classes: C.

    Raises:
        ValueError: there is no network of this depth.
    """

    def __init__(self, depth: int = 16, width: int = 1, in_channels: int = 3, num_classes: int = 10) -> None:
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"a wide residual network is 6 n + 4 layers deep, got {depth}: 10, 16, 22, 28, 34, 40")
        layers: list[nn.Module] = [nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)]
        channels = 16
        for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range((depth - 4) // 6):
                layers.append(PreActivation(channels, outputs, 2 if stage and not block else 1))
                channels = outputs
        ends = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(nn.Sequential(*layers, *ends), channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels)))
