"""Networks that make images of noise. They have no classes, so `MODELS` has none of them.

An algorithm names one among its settings as `"fedloom.models:DenseGenerator"`, and gets it from `Model.by_name` with
the sizes that its data ask for.
"""

from __future__ import annotations

from torch import Tensor, nn


class DenseGenerator(nn.Module):
    """The generator of DENSE (Zhang et al., NeurIPS 2022), as in its authors' code: noise (B, nz) to images in (0, 1).

    A linear layer to 2 ngf maps of a quarter of the image's side; then twice: doubled by nearest neighbours, a
    convolution 3x3 (to 2 ngf, then ngf channels), BatchNorm and leaky ReLU of 0.2; a last convolution and the sigmoid.
    2,328,899 parameters for 32 x 32 colours, 1,834,305 for 28 x 28 greys.

    It begins as it does there, anew in every epoch: weights normal with deviation 0.02, about 1 those of BatchNorm and
    about 0 all others; biases 0. Layers have the names that they have there.

    Args:
        nz: values of the noise of one image.
        ngf: width; half the channels of the first maps.
        channels: of the images (B, channels, size, size).
        size: their height and width in pixels, a multiple of 4.

    Raises:
        ValueError: the size is no multiple of 4, or one of the numbers is not positive.
    """

    def __init__(self, nz: int = 256, ngf: int = 64, channels: int = 3, size: int = 32) -> None:
        if min(nz, ngf, channels) < 1:
            raise ValueError(f"nz, ngf and channels must be at least 1, got {nz}, {ngf} and {channels}: name others")
        if size < 4 or size % 4:
            raise ValueError(f"a generated image is a multiple of 4 pixels wide, got {size}: crop or pad the images")
        super().__init__()
        self.maps = (2 * ngf, size // 4, size // 4)
        self.l1 = nn.Sequential(nn.Linear(nz, 2 * ngf * (size // 4) ** 2))
        self.conv_blocks = nn.Sequential(
            nn.BatchNorm2d(2 * ngf),
            *(nn.Upsample(scale_factor=2), nn.Conv2d(2 * ngf, 2 * ngf, 3, padding=1, bias=False)),
            *(nn.BatchNorm2d(2 * ngf), nn.LeakyReLU(0.2)),
            *(nn.Upsample(scale_factor=2), nn.Conv2d(2 * ngf, ngf, 3, padding=1, bias=False)),
            *(nn.BatchNorm2d(ngf), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(ngf, channels, 3, padding=1), nn.Sigmoid()),
        )
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.BatchNorm2d):
                nn.init.normal_(layer.weight, float(isinstance(layer, nn.BatchNorm2d)), 0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, z: Tensor) -> Tensor:
        """Return images (B, channels, size, size)."""
        images: Tensor = self.conv_blocks(self.l1(z).unflatten(1, self.maps))
        return images
