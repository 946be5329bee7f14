"""CIFAR-10 and CIFAR-100, as pickles or in the binary version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data.examples import Dataset, Examples
from fedloom.data.in_memory import from_arrays
from fedloom.data.normalise import Normalise
from fedloom.sources.constants import CLASSES
from fedloom.sources.download import Download, Remote
from fedloom.sources.formats import Bytes, check_labels, find_files, read_records
from fedloom.sources.pickles import read_pickle

CIFAR10_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR100_FILES = ("train", "test")


def cifar(
    name: str,
    folder: Path,
    places: tuple[str, str],
    stems: Sequence[str],
    key: str,
    classes: tuple[int, ...],
    normalise: Normalise,
) -> Dataset:
    python = [(stem,) for stem in stems]
    binary = [(f"{stem}.bin",) for stem in stems]
    where = [(folder / places[0], python), (folder / places[1], binary), (folder, python), (folder, binary)]
    images: list[Bytes] = []
    labels: list[npt.NDArray[np.int64]] = []
    for path in find_files(name, where):
        if path.suffix == ".bin":
            x, stored = read_records(path, len(classes))
            # Coarse labels are not used, but a wrong one means that the records are not what they should be.
            y = [check_labels(path, stored[:, i], len(x), count) for i, count in enumerate(classes)][-1]
        else:
            x, pickled = read_pickle(path, key)
            y = check_labels(path, pickled, len(x), classes[-1])
        images.append(x)
        labels.append(y)
    train, test = (
        replace(
            from_arrays(
                np.concatenate(xs), np.concatenate(ys), num_classes=classes[-1], normalise=normalise, name=name
            ),
            classes=CLASSES.get(name, ()),
        )
        for xs, ys in ((images[:-1], labels[:-1]), (images[-1:], labels[-1:]))
    )
    return Dataset(train, test)


def grey(colours: Dataset) -> Dataset:
    """Return the images in grey: 0.299 R + 0.587 G + 0.114 B, rounded."""

    def of(part: Examples) -> Examples:
        luma = sum(c * part.x[:, i].int() for i, c in enumerate((299, 587, 114)))
        x = torch.div(luma + 500, 1000, rounding_mode="floor").to(torch.uint8)
        return replace(part, x=x[:, None], normalise=Normalise(scale=1 / 255), name="cifar10_grey")

    return Dataset(of(colours.train), colours.test and of(colours.test))


def cifar_download(archive: str, checksum: str, folder: str, names: Sequence[str]) -> Download:
    """Return the download of an archive with the pickles `names` in `folder`."""
    members = {f"{folder}/{name}": f"{folder}/{name}" for name in names}
    remote = Remote(archive, (f"https://www.cs.toronto.edu/~kriz/{archive}",), checksum, members)
    return Download("the University of Toronto", "Keras", (remote,))
