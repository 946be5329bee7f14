"""The arithmetic that turns stored numbers into network inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalise:
    """Turn stored values into network inputs: `(x * scale - mean) / std`, channel by channel.

    One value of `mean` and `std` serves every element; C values serve the C channels of images (..., C, H, W).

    Args:
        mean: mean of each channel, after scaling.
        std: standard deviation of each channel, after scaling; greater than 0.
        scale: factor applied first, 1/255 for uint8 pixels.

    Raises:
        ValueError: `mean` and `std` differ in length, or a value is not finite, or `std` is not positive.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise ValueError(
                f"mean and std need one value each per channel, got {len(self.mean)} and {len(self.std)}: "
                "give both the same, non-zero length"
            )
        if not all(map(math.isfinite, (*self.mean, *self.std, self.scale))) or min(self.std) <= 0 or self.scale == 0:
            raise ValueError(
                f"mean, std and scale must be finite, std positive and scale not 0, got mean={self.mean}, "
                f"std={self.std}, scale={self.scale}: leave out a channel that does not vary"
            )

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return `x` normalised, in the floating point type `dtype`.

        Args:
            x: (..., C, H, W) where C is the number of means; any shape if there is one mean.
            dtype: type of the result, and of the arithmetic.

        Raises:
            ValueError: there are several means, and axis -3 of `x` is not that long.
        """
        # One multiply-add with constants: this runs on every batch of every client.
        factor = [self.scale / std for std in self.std]
        offset = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        if set(factor) == {1.0} and set(offset) == {0.0}:
            return x.to(dtype)
        if len(factor) == 1:
            return x.to(dtype) * factor[0] + offset[0]
        channels = len(factor)
        if x.dim() < 3 or x.shape[-3] != channels:
            raise ValueError(
                f"{channels} means normalise images (..., {channels}, H, W), got shape {tuple(x.shape)}: "
                "give one mean for all elements, or one per channel"
            )
        a, b = torch.tensor([factor, offset], dtype=dtype, device=x.device).view(2, channels, 1, 1).unbind()
        return x.to(dtype) * a + b


AS_STORED = Normalise()
