"""Images beside masks, which are PNG files of the same names that hold the class of each pixel."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.examples import Dataset, Examples
from fedloom.data.in_memory import from_arrays, missing_classes
from fedloom.sources.folders import SUFFIXES, entries_of, images, is_several, owned, pillow, read_pictures, site_folders
from fedloom.sources.formats import Bytes
from fedloom.tables.file_checks import FormatError, read_whole, refuse, warn_of_folders
from fedloom.wording import local_path, some_of

_MODES = ("L", "P", "1")  # of Pillow: grey, with a palette, black and white


def images_and_masks(folder: Path, masks: str = "", classes: str = "", ignored: str = "255") -> Dataset:
    """Return images with the classes of their pixels; without `masks`, those of `images`, by class.

    Images lie in `{train,test}/` of the folder, or in the folder itself, without folders of classes; each has a mask,
    STEM.png, in the same place of the folder `masks`. Sites are several such folders, with masks in as many of the same
    names: `images:sites/*?masks=masks/*`.

    Args:
        folder: of the images.
        masks: that of the masks.
        classes: how many there are, or their names with commas; "": every class up to the largest is there.
        ignored: which value counts nowhere; "none": none.
    """
    if not masks:
        if classes or ignored != "255":
            refuse(folder, "classes and ignored are said of masks", "no masks", "name their folder (?masks=FOLDER)")
        return images(folder)
    place = local_path(masks)
    names = () if classes.isdecimal() else tuple(filter(None, classes.split(",")))
    count = int(classes) if classes.isdecimal() else len(names)
    if not (ignored == "none" or ignored.isdecimal()):
        refuse(place, "ignored is the value that counts nowhere, or none", repr(ignored), "write ignored=255")
    apart = None if ignored == "none" else int(ignored)
    several = is_several(folder)
    images_of, masks_of = (site_folders(each) if several else {"": each} for each in (folder, place))
    if [*images_of] != [*masks_of]:
        told = f"{some_of(images_of, 5)} and {some_of(masks_of, 5)}"
        refuse(place, "sites have folders of the same names for images and masks", told, "rename them")
    found = [_pairs(images_of[name], masks_of[name]) for name in images_of]
    total = sum(len(pairs) for site in found for pairs in site.values())
    reader, shape, read = _MaskReader(count, apart), None, []
    for site in found:
        parts = {}
        for part, pairs in site.items():
            x, _ = read_pictures([(path, 0) for path, _ in pairs], total, shape)
            shape = x.shape[1:]
            parts[part] = x, reader.read([path for _, path in pairs], shape[1:])
        read.append(parts)
    count = count or reader.count(place)

    def made(pieces: Sequence[tuple[Bytes, Bytes]]) -> Examples:
        x, y = (np.concatenate(each) for each in zip(*pieces, strict=True))
        name = (next(iter(images_of.values())).resolve().parent if several else folder.resolve()).name or "images"
        return from_arrays(x, y, num_classes=count, classes=names, ignored=apart, name=name)

    if several:
        sizes = [[len(x) for x, _ in parts.values()] for parts in read]
        return owned(made([piece for parts in read for piece in parts.values()]), [*images_of], sizes)
    return Dataset(made([read[0]["train"]]), made([read[0]["test"]]) if "test" in read[0] else None)


def pictures(folder: Path) -> tuple[Bytes, list[Path]]:
    """Return images to predict, uint8 (N, C, H, W), and their files: those of `test/`, or of the folder itself."""
    place = next((each for each in (folder / "test", folder / "train") if each.is_dir()), folder)
    if not place.is_dir():
        refuse(place, "images to predict lie in a folder", "no such folder", "name one: images:FOLDER")
    files = [*_listed(place, SUFFIXES).values()]
    return read_pictures([(path, 0) for path in files], len(files), None)[0], files


def _pairs(folder: Path, masks: Path) -> dict[str, list[tuple[Path, Path]]]:
    """Return each image of `train` and `test` with its mask; a folder without `train/` is all to train on."""
    if not masks.is_dir():
        refuse(
            masks, "masks lie in a folder as their images do", "no such folder", "name it: images:FOLDER?masks=FOLDER"
        )
    if (folder / "train").is_dir():
        warn_of_folders(folder)
        places = {part: (folder / part, masks / part) for part in ("train", "test") if (folder / part).is_dir()}
    else:
        places = {"train": (folder, masks)}
    out = {}
    for part, (own, theirs) in places.items():
        for each in (own, theirs):
            if not each.is_dir():
                refuse(each, "there must be a folder of this name", "none", "put images, or masks, into it")
        pictures_by, masks_by = _listed(own, SUFFIXES), _listed(theirs, (".png",))
        for rule, here, there in (
            ("each image must have a mask of its name, a PNG file", pictures_by, masks_by),
            ("each mask must have an image of its name", masks_by, pictures_by),
        ):
            if lacks := [path.name for stem, path in here.items() if stem not in there]:
                refuse(theirs, rule, f"none for {some_of(lacks, 5)}", "add what is missing, or remove what is alone")
        out[part] = [(path, masks_by[stem]) for stem, path in pictures_by.items()]
    return out


def _listed(folder: Path, suffixes: Sequence[str]) -> Mapping[str, Path]:
    """Return the files of a folder by their names without endings."""
    out: dict[str, Path] = {}
    for path in (Path(entry.path) for entry in entries_of(folder, folder)):
        if not path.is_file() or path.suffix.lower() not in suffixes:
            refuse(path, f"it must be a file that ends in {', '.join(suffixes)}", path.name, "convert or remove it")
        if path.stem in out:
            refuse(path, "files have different names without their endings", out[path.stem].name, "rename one")
        out[path.stem] = path
    if not out:
        refuse(folder, "the folder must hold images", "none", "add some, or remove it")
    return out


@dataclass
class _MaskReader:
    """Read masks, and note which values they hold. `classes`: how many there are; 0: any. `ignored`: no class."""

    classes: int
    ignored: int | None

    def __post_init__(self) -> None:
        self.seen: set[int] = set()

    def read(self, files: Sequence[Path], size: tuple[int, ...]) -> Bytes:
        """Return masks (N, H, W) of the size of their images."""
        out = np.empty((len(files), *size), np.uint8)
        with pillow() as image:
            for i, path in enumerate(files):
                try:
                    with image.open(io.BytesIO(read_whole(path)), formats=("PNG",)) as picture:
                        self._check(path, picture, size)
                        out[i] = np.asarray(picture)
                except FormatError:
                    raise
                except Exception as error:  # as of images
                    refuse(path, "the file must be a whole PNG image", f"{type(error).__name__}: {error}")
                self._note(path, out[i])
        return out

    def count(self, place: Path) -> int:
        """Return how many classes the masks hold that were read."""
        values = np.array(sorted(self.seen), np.int64)
        if len(values) < 2:
            told = f"{values.tolist()} beside {self.ignored}, which counts nowhere"
            refuse(place, "masks must hold two classes or more", told, "save classes as 0, 1, 2, or say classes=2")
        if values[0] or missing_classes(values):
            told = some_of(map(str, values.tolist()), 8)
            refuse(place, "masks must hold every class from 0", told, "renumber them, or say how many (classes=N)")
        return len(values)

    def _check(self, path: Path, picture: Any, size: tuple[int, ...]) -> None:
        if picture.mode not in _MODES:
            rule = "a mask holds class numbers, grey or by a palette of at most 256"
            refuse(path, rule, f"mode {picture.mode}", "save the number of each pixel's class")
        if (own := (picture.height, picture.width)) != size:
            told = " x ".join(map(str, own))
            refuse(path, f"a mask has the size of its image, {' x '.join(map(str, size))}", told, "resize it (nearest)")

    def _note(self, path: Path, mask: npt.NDArray[np.uint8]) -> None:
        here = {*np.flatnonzero(np.bincount(mask.ravel(), minlength=256)).tolist()} - {self.ignored}
        if self.classes and (wrong := sorted(k for k in here if k >= self.classes)):
            apart = "" if self.ignored is None else f", or {self.ignored} where none counts"
            rule = f"classes of pixels are 0 to {self.classes - 1} (classes){apart}"
            refuse(path, rule, some_of(map(str, wrong), 8), "mend the mask, or say classes=N")
        self.seen |= here
