"""How copies lie in memory."""

from __future__ import annotations

import torch

from fedloom.core.layout import by_channels, by_pixels


def test_images_alone_lie_by_pixels_and_copies_of_them_as_new_ones() -> None:
    image, volume = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4, 4)
    assert by_pixels(image).stride() == (48, 1, 12, 3)
    assert by_pixels(volume).stride() == volume.stride()
    assert by_channels(by_pixels(image)).stride() == image.stride()
    one = torch.rand(2, 1, 4, 4).clone(memory_format=torch.channels_last)
    assert by_channels(one).stride() == (16, 16, 4, 1)  # of a single channel too
    for copy in (by_pixels, by_channels):
        assert torch.equal(copy(image), image)
        assert copy(image).data_ptr() != image.data_ptr()
