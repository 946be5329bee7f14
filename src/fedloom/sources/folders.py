"""Images in folders, one folder for each class: CINIC-10, and any others."""

from __future__ import annotations

import glob
import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from fedloom.data.examples import Dataset, Examples
from fedloom.data.in_memory import from_arrays
from fedloom.sources.constants import CLASSES, NORMALISE
from fedloom.sources.formats import Bytes
from fedloom.tables.columns import warn_of_spellings
from fedloom.tables.file_checks import FormatError, check_link, memory, read_whole, refuse, warn_of_folders
from fedloom.wording import install, local_path, some_of

_CLASSES = CLASSES["cifar10"]
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # others would start Pillow's plug-ins for any format that it knows


def cinic10(folder: Path, valid: bool) -> Dataset:
    """Return CINIC-10 from `{train,test}/<class>/*.png`; with `valid`, those of `valid/` join the training images."""
    place = next((p for p in (folder / "CINIC-10", folder / "cinic-10", folder) if (p / "train").is_dir()), folder)
    check_link(place, folder)
    parts: Sequence[str] = ("train", "valid", "test") if valid else ("train", "test")
    listed = [_list(place, part) for part in parts]
    for part, classes in zip(parts, listed, strict=True):
        if tuple(sorted(classes)) != _CLASSES:
            refuse(
                place / part, f"CINIC-10 has the classes {', '.join(_CLASSES)}", _few(classes), "complete the folder"
            )
    # As ImageFolder does, through which everyone reads this data set.
    total = sum(len(files) for classes in listed for files in classes.values())
    read = [read_pictures(_items(classes, _CLASSES), total, (3, 32, 32), colour=True) for classes in listed]
    name = "cinic10_with_valid" if valid else "cinic10"
    train, test = (
        from_arrays(np.concatenate(xs), np.concatenate(ys), normalise=NORMALISE["cinic10"], name=name, classes=_CLASSES)
        for xs, ys in (zip(*part, strict=True) for part in (read[:-1], read[-1:]))
    )
    return Dataset(train, test)


def images(folder: Path) -> Dataset:
    """Return images from `{train,test}/<class>/*`, uint8 (N, C, H, W); classes are numbered in the order of names.

    All images have one size and are either grey (mode L) or in colour (RGB). Without `test/`, there is no test set.
    Pixels are those stored, as `ImageFolder` of torchvision has them: no image is turned as its EXIF data may ask for.

    A pattern `sites/*`, or folders with commas between them, are several such folders, each a natural client that bears
    its name; their test images are held out.
    """
    if is_several(folder):
        return _of_sites(folder)
    if not (folder / "train").is_dir():
        _refuse_without_train(folder)
    warn_of_folders(folder)
    listed = {part: _list(folder, part) for part in ("train", "test") if (folder / part).is_dir()}
    classes = listed["train"]
    if extra := sorted(listed.get("test", classes).keys() - classes.keys()):
        refuse(
            folder / "test", f"test/ must hold classes of train/, {_few(classes)}", _few(extra), "rename the folders"
        )
    warn_of_spellings(folder, {"train": classes})
    total = sum(len(files) for part in listed.values() for files in part.values())
    parts: dict[str, Examples] = {}
    for part, files in listed.items():
        x, y = read_pictures(_items(files, list(classes)), total, parts["train"].shape if parts else None)
        parts[part] = from_arrays(x, y, name=folder.resolve().name or "images", classes=tuple(classes))
    return Dataset(parts["train"], parts.get("test"))


def is_several(folder: Path) -> bool:
    """Return whether the place of images is a pattern of folders, or several with commas."""
    return not folder.exists() and any(mark in str(folder) for mark in "*[,")


def _refuse_without_train(folder: Path) -> NoReturn:
    """Refuse a folder without `train/`; say how what is there may be meant."""
    below = entries_of(folder, folder) if folder.is_dir() else []
    folders = [Path(entry.path) for entry in below if entry.is_dir()]
    if any((path / "train").is_dir() for path in folders):
        found, remedy = "folders with train/ in them", f"name the sites, each a client: 'images:{folder}/*'"
    elif any(path.suffix.lower() in SUFFIXES for place in folders for path in place.iterdir()):
        found, remedy = "folders with images alone", "move the folders of classes into train/"
    elif any(entry.is_dir() for path in folders for entry in path.iterdir()):
        found = "folders of folders, without train/"
        remedy = f"move the classes of each site into its train/, and name the sites: 'images:{folder}/*'"
    elif not folder.is_dir():
        found, remedy = "no such folder", "give the folder that holds train/"
    else:
        found, remedy = "no train/", "make one folder for each class in it"
    refuse(folder, "the folder must hold train/<class>/ with images", found, remedy)


def _of_sites(pattern: Path) -> Dataset:
    """Return the images of several folders, each a natural client whose test images are held out."""
    folders = site_folders(pattern)
    names = [*folders]
    read = [images(path) for path in folders.values()]
    shapes = {str(site.train.shape): name for name, site in zip(names, read, strict=True)}
    if len(shapes) > 1:
        told = " and ".join(f"{shape} in {name}" for shape, name in shapes.items())
        refuse(pattern, "all images must have one shape", told, "resize or convert them")
    classes = sorted({name for site in read for name in site.train.classes})
    for name, site in zip(names, read, strict=True):
        if lacks := [one for one in classes if one not in site.train.classes]:
            warnings.warn(f"{pattern}: {name} has no training image of {_few(lacks)}", stacklevel=2)
    warn_of_spellings(pattern, {"train": classes})
    parts = [[part for part in (site.train, site.test) if part is not None] for site in read]
    places = {name: k for k, name in enumerate(classes)}
    y = [np.array([places[c] for c in part.classes])[part.y.numpy()] for site in parts for part in site]
    x = np.concatenate([part.x.numpy() for site in parts for part in site])
    name = folders[names[0]].resolve().parent.name or "images"
    whole = from_arrays(x, np.concatenate(y), name=name, classes=classes)
    return owned(whole, names, [[*map(len, site)] for site in parts])


def site_folders(pattern: Path) -> dict[str, Path]:
    """Return the folders of sites by their names, in the order of their paths."""
    if any(mark in str(pattern) for mark in "*["):
        folders = sorted(path for path in map(Path, glob.glob(str(pattern))) if path.is_dir())
    else:
        folders = sorted(map(local_path, str(pattern).split(",")))
    names = [path.resolve().name for path in folders]
    if len(folders) < 2 or len({*names}) < len(names):
        rule = "sites are two folders or more, of different names"
        refuse(pattern, rule, ", ".join(names) or "none", "name others, such as images:sites/*")
    return dict(zip(names, folders, strict=True))


def owned(whole: Examples, names: Sequence[str], sizes: Sequence[Sequence[int]]) -> Dataset:
    """Return examples as those of natural clients, each of which has so many to train on, and then to be tested on."""
    owners = np.repeat(np.arange(len(names)), [*map(sum, sizes)])
    held_out = np.repeat([bool(i) for site in sizes for i, _ in enumerate(site)], [n for site in sizes for n in site])
    whole = replace(whole, owners=tuple(names))
    if not held_out.any():
        return Dataset(whole, None, owners)
    return Dataset(whole, whole.select(np.flatnonzero(held_out)), owners, held_out)


def _list(folder: Path, part: str) -> dict[str, list[Path]]:
    """Return the image files below `folder/part`, by class; classes and files are sorted by name."""
    root = folder / part
    check_link(root, folder)
    if not root.is_dir():
        refuse(root, "there must be a folder of this name", "none", "unpack the whole data set")
    classes = {}
    for entry in entries_of(folder, root):
        if not entry.is_dir():
            refuse(root, "it must hold one folder for each class and nothing else", entry.name, "remove the file")
        files = entries_of(folder, Path(entry.path))
        for file in files:
            if not file.is_file() or not file.name.lower().endswith(SUFFIXES):
                refuse(Path(file.path), f"images end in {', '.join(SUFFIXES)}", file.name, "convert or remove it")
        if not files:
            refuse(Path(entry.path), "the folder of a class must hold images", "none", "add some, or remove it")
        classes[entry.name] = [Path(file.path) for file in files]
    if not classes:
        refuse(root, "it must hold one folder for each class", "none", "unpack the whole data set")
    return classes


def entries_of(root: Path, folder: Path) -> list[os.DirEntry[str]]:
    """Return what a folder holds, sorted by name.

    Names that begin with a dot are left out. Links out of `root` are refused.
    """
    with os.scandir(folder) as found:
        entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    for entry in entries:
        check_link(Path(entry.path), root)
    return entries


def _items(classes: Mapping[str, list[Path]], names: Sequence[str]) -> list[tuple[Path, int]]:
    return [(path, label) for label, name in enumerate(names) for path in classes.get(name, [])]


def read_pictures(
    items: Sequence[tuple[Path, int]], total: int, shape: tuple[int, ...] | None, colour: bool = False
) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Read images (N, C, H, W) and labels.

    All images have `shape`, or that of the first. With `colour`, grey ones become RGB.

    `total`: how many there are in all parts, which must have room together.
    """
    out: Bytes | None = None
    with pillow() as image:
        for i, (path, _) in enumerate(items):
            try:
                # From memory: of a file, Pillow would reserve what a chunk promises, up to 4 GiB.
                with image.open(io.BytesIO(read_whole(path)), formats=_FORMATS) as picture:
                    mode = "RGB" if colour and picture.mode in ("1", "L", "P", "RGBA") else picture.mode
                    if mode not in ("L", "RGB"):
                        refuse(path, "images must be grey (L) or in colour (RGB)", f"mode {mode}", "convert them")
                    own = (1 if mode == "L" else 3, picture.height, picture.width)
                    shape = shape or own
                    if own != shape:  # before anything is unpacked
                        refuse(path, f"all images must have the shape {shape}", own, "resize or convert them")
                    if out is None:
                        if (size := math.prod(shape) * total) > (room := memory()):
                            rule = f"the {total} images must take at most {room} bytes, half of the memory, unpacked"
                            refuse(path, rule, size, "resize them, or use fewer")
                        out = np.empty((len(items), *shape), np.uint8)
                    pixels = np.asarray(picture if picture.mode == mode else picture.convert(mode))
            except FormatError:
                raise
            except Exception as error:  # a decoder fed with garbage raises nearly anything
                refuse(path, "the file must be a whole image", f"{type(error).__name__}: {error}")
            out[i] = pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
    assert out is not None
    return out, np.array([label for _, label in items], np.int64)


@contextmanager
def pillow() -> Iterator[Any]:
    """Give Pillow's `Image`, and make an error of its warning of images that unpack to absurd sizes.

    Raises:
        ValueError: Pillow is not installed, or an image is so large.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ValueError(f"reading images needs Pillow: {install('images')}") from None
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            yield Image
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ValueError(f"images must be small enough for Pillow, got one that is not: {error}") from error


def _few(names: Sequence[str] | dict[str, Any]) -> str:
    return some_of(sorted(names), 12)
