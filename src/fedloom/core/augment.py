"""Random augmentation of image batches as tensor code: the same images on every engine, whoever shares the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedloom.core.choices import check_choices
from fedloom.core.errors import SettingError
from fedloom.core.random import uniform
from fedloom.data import Normalise


@dataclass(frozen=True)
class Augment:
    """Random crop, horizontal flip and Cutout of normalised images (`Examples(augment=...)`); static and hashable.

    `crop`: pixels of padding on each side, from which a window of the image's size is cut. `padding`: "zero" pads with
    black, "reflect" mirrors. `flip`: with probability 1/2. `cutout`: side of a square around a random pixel, clipped at
    the border, that is set to 0, the mean colour; 0: none (DeVries & Taylor 2017). `black`: the normalised value of a
    black pixel, one for each channel or one for all; `Augment.of` fills it in.

    The FedNTD authors use crop 4 with zeros, flip and cutout 16 on CIFAR and MNIST; on CINIC-10 crop 4 with reflection
    and flip alone.
    """

    crop: int = 4
    padding: Literal["zero", "reflect"] = "zero"
    flip: bool = True
    cutout: int = 0
    black: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        if self.crop < 0 or self.cutout < 0:
            raise SettingError(f"crop and cutout must be >= 0 pixels, got {self.crop} and {self.cutout}")
        check_choices(self)

    @staticmethod
    def of(
        normalise: Normalise,
        *,
        crop: int = 4,
        padding: Literal["zero", "reflect"] = "zero",
        flip: bool = True,
        cutout: int = 0,
    ) -> Augment:
        """Return the augmentation of images that are normalised in this way.

        Args:
            normalise: of the examples.
            crop: pixels of padding on each side, from which an image of the old size is cut at random.
            padding: of the crop: black, or by reflection.
            flip: whether to mirror half of the images.
            cutout: side of the square that is set to 0 after normalisation, in pixels.
        """
        black = tuple(-m / s for m, s in zip(normalise.mean, normalise.std, strict=True))
        return Augment(crop=crop, padding=padding, flip=flip, cutout=cutout, black=black)

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Return the images augmented, in the shape they have.

        `x`: [B, C, H, W], normalised; `key`: [] int64, of this client and batch.
        """
        if x.ndim != 4:
            raise SettingError(f"augmentation needs images [B, C, H, W], got {list(x.shape)}; use augment=None")
        B, _, H, W = x.shape
        draws = uniform(key, _SITE, torch.Size((B, 5)))  # of each image: crop y and x, flip, cutout y and x
        rows, cols = torch.arange(H, device=x.device), torch.arange(W, device=x.device)
        if self.crop or self.flip:
            shift = (draws[:, :2] * (2 * self.crop + 1)).long()
            turned = (draws[:, 2:3] < 0.5) if self.flip else torch.zeros_like(draws[:, 2:3], dtype=torch.bool)
            y = rows + shift[:, :1]
            z = torch.where(turned, W - 1 - cols, cols) + shift[:, 1:2]  # the window is cut, then turned
            wide = self._padded(x)
            each = torch.arange(B, device=x.device)[:, None, None]
            x = wide.movedim(1, -1)[each, y[:, :, None], z[:, None, :]].movedim(-1, 1)
        if self.cutout:
            half = self.cutout // 2
            top, left = (draws[:, 3:4] * H).long() - half, (draws[:, 4:5] * W).long() - half
            hidden_rows = (rows >= top) & (rows < top + self.cutout)
            hidden_cols = (cols >= left) & (cols < left + self.cutout)
            x = torch.where((hidden_rows[:, :, None] & hidden_cols[:, None, :])[:, None], 0.0, x)
        return x

    def _padded(self, x: Tensor) -> Tensor:
        if not self.crop:
            return x
        if self.padding == "reflect":
            if self.crop >= min(x.shape[2:]):
                raise SettingError(
                    f"reflection mirrors at most {min(x.shape[2:]) - 1} pixels of images of {x.shape[2]} x "
                    f"{x.shape[3]}, got crop = {self.crop}: lower it, or pad with zero"
                )
            return pad(x, [self.crop] * 4, mode="reflect")
        if len(self.black) not in (1, x.shape[1]):  # which would make channels
            raise SettingError(
                f"black has one value or one for each of the images' {x.shape[1]} channels, got {self.black}: use "
                "Augment.of(examples.normalise, ...)"
            )
        black = torch.tensor(self.black, dtype=x.dtype, device=x.device).reshape(-1, 1, 1)
        return pad(x - black, [self.crop] * 4) + black


_SITE = 0xA6  # dropout sites of a network count from 0; this one is far from them
