"""Data sets by name, in the files that their authors published, read from a local folder. Nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data.constants import CLASSES, NORMALISE
from fedloom.data.examples import Dataset, Examples, Normalise, from_arrays
from fedloom.data.folders import cinic10, images as image_folder
from fedloom.data.formats import Bytes, check_labels, find_files, read_idx, read_pickle, read_records
from fedloom.data.leaf import femnist, leaf
from fedloom.data.matlab import svhn, vehicle, whole_vehicle
from fedloom.data.stand_ins import vehicle_like

_EMNIST_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
_OTHERS: dict[str, Callable[[Path], Dataset]] = {
    "svhn": svhn,
    "cinic10": lambda folder: cinic10(folder, valid=False),
    "cinic10_with_valid": lambda folder: cinic10(folder, valid=True),
    "images": image_folder,
    "leaf": leaf,
    "femnist": femnist,
    "vehicle": vehicle,
    "vehicle_whole": whole_vehicle,
    "vehicle_like": lambda folder: vehicle_like(),
    "emnist_letters_aj": lambda folder: _letters_aj(load("emnist_letters", folder)),
    "cifar10_grey": lambda folder: _grey(load("cifar10", folder)),
}
SOURCES = ("mnist", "fashion_mnist", "cifar10", "cifar100", *(f"emnist_{split}" for split in _EMNIST_CLASSES), *_OTHERS)
_PARTS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def load(name: str, folder: str | os.PathLike[str]) -> Dataset:
    """Return a published data set, images uint8 (N, C, H, W) where nothing else is said, in file order.

    | name | files, in `folder` or in the folder of it named here |
    |---|---|
    | `mnist` | `MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte`, plain or `.gz` |
    | `fashion_mnist` | the same in `FashionMNIST/raw` |
    | `emnist_letters`, `_digits`, `_balanced`, `_byclass`, `_bymerge`, `_mnist` | `EMNIST/raw/emnist-letters-train-*` |
    | `emnist_letters_aj` | of `emnist_letters` the classes a to j, paper 1 and ink 0 as in FedProx's FEMNIST |
    | `cifar10` | `cifar-10-batches-py/data_batch_1`..., or `cifar-10-batches-bin/data_batch_1.bin`... |
    | `cifar100` | `cifar-100-python/{train,test}`, or `cifar-100-binary/{train,test}.bin` |
    | `cifar10_grey` | of `cifar10` the luma (ITU-R BT.601) in 0 to 1, uint8 (N, 1, 32, 32) |
    | `svhn` | `{train,test}_32x32.mat`, also in `SVHN` |
    | `cinic10`, `cinic10_with_valid` | `{train,valid,test}/<class>/*.png`, also in `CINIC-10`; needs Pillow |
    | `images` | `{train,test}/<class>/*`, PNG, JPEG, BMP or WebP of one size; needs Pillow |
    | `leaf` | `{train,test}/*.json`, also in `data`: vectors (N, D) float32, and who owns them |
    | `femnist` | the same: images (N, 1, 28, 28) float32 by writer |
    | `vehicle` | `vehicle.mat`, or `vehicle.npz` with x, y, client: (N, 100) float32, and who owns them |
    | `vehicle_whole` | the same, refused unless all 43,695 examples are there |
    | `vehicle_like` | no file: made-up data of that shape (`fedloom.data.stand_ins`) |

    IDX names may be written with a dot, `train-images.idx3-ubyte`. EMNIST images are turned upright and normalised
    with the constants of MNIST; letters a to z become classes 0 to 25. CIFAR-100 gives its 100 fine classes. CIFAR
    pickles are read without running code that they may hold. CIFAR files do not say how many images they should
    hold, so one that was cut between two records of the binary version is not noticed. `cinic10` trains on `train/`
    alone, 90,000 images, as FedNTD does; with `valid/` they are 180,000. The examples in LEAF's test folder are rows
    of `train` that `held_out` marks, and `test` is a copy of them.

    Args:
        name: data set; `-` may stand for `_`.
        folder: where the files are.

    Raises:
        ValueError: the name is unknown, files are missing, or a file breaks a rule of its format.
    """
    key, folder = name.replace("-", "_"), Path(folder)
    if key == "mnist":
        return _idx_pair(key, folder, ("MNIST/raw", "MNIST", "mnist"), ("train", "t10k"), 10, NORMALISE["mnist"])
    if key == "fashion_mnist":
        fashion = ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist")
        return _idx_pair(key, folder, fashion, ("train", "t10k"), 10, NORMALISE["fashion_mnist"])
    split = key.removeprefix("emnist_")
    if split != key and split in _EMNIST_CLASSES:
        prefixes = (f"emnist-{split}-train", f"emnist-{split}-test")
        return _idx_pair(key, folder, ("EMNIST/raw", "EMNIST", "emnist", "gzip"), prefixes, _EMNIST_CLASSES[split])
    if key == "cifar10":
        batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        return _cifar(
            key, folder, ("cifar-10-batches-py", "cifar-10-batches-bin"), batches, "labels", (10,), NORMALISE[key]
        )
    if key == "cifar100":
        places = ("cifar-100-python", "cifar-100-binary")
        return _cifar(key, folder, places, ["train", "test"], "fine_labels", (20, 100), NORMALISE[key])
    if key in _OTHERS:
        return _OTHERS[key](folder)
    raise ValueError(f"name must be a data set with a loader, got {name!r}: use one of {', '.join(SOURCES)}")


# ---- MNIST and its relatives


def _idx_pair(
    name: str,
    folder: Path,
    places: Iterable[str],
    prefixes: tuple[str, str],
    num_classes: int,
    normalise: Normalise = NORMALISE["mnist"],
) -> Dataset:
    files = []
    for stem in (f"{prefix}-{part}" for prefix in prefixes for part in _PARTS):
        dotted = stem.replace("-idx", ".idx")
        files.append((stem, f"{stem}.gz", dotted, f"{dotted}.gz"))
    paths = find_files(name, [(place, files) for place in (*(folder / p for p in places), folder)])
    first = 1 if name == "emnist_letters" else 0
    parts = []
    for images, labels in (paths[:2], paths[2:]):
        x, y = read_idx(images, (28, 28)), read_idx(labels, ())
        if name.startswith("emnist"):  # stored column by column
            x = x.transpose(0, 2, 1)
        target = check_labels(labels, y, len(x), num_classes, first)
        made = from_arrays(x[:, None], target, num_classes=num_classes, normalise=normalise, name=name)
        parts.append(replace(made, classes=CLASSES.get(name, ())))
    return Dataset(parts[0], parts[1])


def _letters_aj(letters: Dataset) -> Dataset:
    """Return the first ten classes, white on black turned into black on white."""

    def of(part: Examples) -> Examples:
        return replace(part, normalise=Normalise((-1.0,), (1.0,), -1 / 255), name="emnist_letters_aj")

    kept = letters.first_classes(10)
    return Dataset(of(kept.train), kept.test and of(kept.test))


# ---- CIFAR


def _cifar(
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


def _grey(colours: Dataset) -> Dataset:
    """Return the images in grey: 0.299 R + 0.587 G + 0.114 B, rounded."""

    def of(part: Examples) -> Examples:
        luma = sum(c * part.x[:, i].int() for i, c in enumerate((299, 587, 114)))
        x = torch.div(luma + 500, 1000, rounding_mode="floor").to(torch.uint8)
        return replace(part, x=x[:, None], normalise=Normalise(scale=1 / 255), name="cifar10_grey")

    return Dataset(of(colours.train), colours.test and of(colours.test))
