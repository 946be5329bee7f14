"""MNIST and the data sets that are published as it is: four IDX files, images and labels to train and to test on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fedloom.data.examples import Dataset, Examples
from fedloom.data.in_memory import from_arrays
from fedloom.data.normalise import Normalise
from fedloom.sources.constants import CLASSES, NORMALISE
from fedloom.sources.download import Download, Remote
from fedloom.sources.formats import check_labels, find_files, read_idx

_PARTS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def idx_pair(
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


def letters_aj(letters: Dataset) -> Dataset:
    """Return the first ten classes, white on black turned into black on white."""

    def of(part: Examples) -> Examples:
        return replace(part, normalise=Normalise((-1.0,), (1.0,), -1 / 255), name="emnist_letters_aj")

    kept = letters.first_classes(10)
    return Dataset(of(kept.train), kept.test and of(kept.test))


def idx_download(publisher: str, folder: str, bases: tuple[str, ...], *sums: str) -> Download:
    """Return the download of four files at each address of `bases`, by their checksums in the order of reading."""
    stems = (f"{prefix}-{part}.gz" for prefix in ("train", "t10k") for part in _PARTS)
    files = (
        Remote(f"{folder}/{stem}", tuple(base + stem for base in bases), checksum)
        for stem, checksum in zip(stems, sums, strict=True)
    )
    return Download(publisher, "TensorFlow Datasets", tuple(files))


def emnist_download(split: str) -> Download:
    """Return the download of a split of EMNIST: four members of one archive."""
    names = [f"emnist-{split}-{prefix}-{part}.gz" for prefix in ("train", "test") for part in _PARTS]
    urls = (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    )
    checksum = "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
    members = {f"gzip/{name}": f"EMNIST/raw/{name}" for name in names}
    return Download("NIST", "TensorFlow Datasets", (Remote("EMNIST/raw/gzip.zip", urls, checksum, members),))
