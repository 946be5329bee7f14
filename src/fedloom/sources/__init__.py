"""Data as others publish them: MNIST, CIFAR, LEAF and more, folders of images and texts, torchvision, Hugging Face."""

from __future__ import annotations

from fedloom.sources.adapters import from_huggingface, from_torch, texts_of_huggingface
from fedloom.sources.embedded import fashion_mnist_small
from fedloom.sources.sources_by_name import download, load

__all__ = ["download", "fashion_mnist_small", "from_huggingface", "from_torch", "load", "texts_of_huggingface"]
