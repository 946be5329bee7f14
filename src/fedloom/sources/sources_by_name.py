"""Data sets by name: what each is, where its files lie in a folder, what reads them and where they are published.

`load` reads local files and downloads nothing; `download` fetches them, where somebody has published their checksums.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedloom.data.examples import Dataset
from fedloom.sources.cifar_files import CIFAR10_FILES, CIFAR100_FILES, cifar, cifar_download, grey
from fedloom.sources.constants import NORMALISE
from fedloom.sources.download import Bar, Download, Remote, fetch
from fedloom.sources.embedded import fashion_mnist_small
from fedloom.sources.folders import cinic10
from fedloom.sources.image_pairs import fashion_mnist_pairs
from fedloom.sources.leaf import femnist, leaf
from fedloom.sources.mask_files import images_and_masks
from fedloom.sources.matlab import svhn, vehicle, whole_vehicle
from fedloom.sources.mnist_files import emnist_download, idx_download, idx_pair, letters_aj
from fedloom.sources.pfllib import pfllib
from fedloom.sources.shakespeare import shakespeare
from fedloom.sources.stand_ins import vehicle_like
from fedloom.sources.text_files import texts
from fedloom.tables.table_words import kinds_of_words
from fedloom.wording import local_path, whole


@dataclass(frozen=True)
class Source:
    """Description of a data set. What people read is Markdown."""

    name: str
    """Its name in `load` and `--data NAME:FOLDER`."""
    load: Callable[..., Dataset]
    """Reader of the files of a folder."""
    what: str
    """Its examples and classes: examples to train on + to test on."""
    files: str
    """Its files, below the folder; nothing where it needs none."""
    tried: str
    """The files that were read in tests."""
    download: Download | None = None
    is_format: bool = False
    """True if the name says how files are written, and not what is in them."""
    says: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `load` that may be said, and their types: `NAME:FOLDER?roles=60`."""


def _emnist(split: str, what: str, num_classes: int, tried: str = "made files") -> Source:
    name, prefixes = f"emnist_{split}", (f"emnist-{split}-train", f"emnist-{split}-test")
    read = partial(
        idx_pair, name, places=("EMNIST/raw", "EMNIST", "emnist", "gzip"), prefixes=prefixes, num_classes=num_classes
    )
    files = f"`EMNIST/raw/`: IDX, `emnist-{split}-train-*`"
    return Source(name, read, what, files, tried, emnist_download(split))


def _svhn(part: str, checksum: str) -> Remote:
    name = f"{part}_32x32.mat"
    return Remote(f"SVHN/{name}", (f"https://ufldl.stanford.edu/housenumbers/{name}",), checksum)


# SHA-256 as TensorFlow Datasets (url_checksums/) and, for CIFAR, Keras publish them. What has none is not downloaded.
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "fashion_mnist_small", lambda folder: Dataset(*fashion_mnist_small()),
            "part of `fashion_mnist` inside the package: 10,000 + 2,000", "", "real files",
        ),
        Source(
            "fashion_mnist_pairs", lambda folder: fashion_mnist_pairs(),
            "pairs of its images with two labels, whether a trouser and whether a bag is there: 2,000 + 500", "",
            "real files",
        ),
        Source(
            "mnist",
            partial(
                idx_pair, "mnist", places=("MNIST/raw", "MNIST", "mnist"), prefixes=("train", "t10k"), num_classes=10
            ),
            "digits, grey 28 x 28, 10 classes: 60,000 + 10,000",
            "`MNIST/raw/`: IDX, plain or `.gz`, also in a flat folder", "real files",
            idx_download(
                "the mirrors of PyTorch and TensorFlow", "MNIST/raw",
                (
                    "https://ossci-datasets.s3.amazonaws.com/mnist/",
                    "https://storage.googleapis.com/cvdf-datasets/mnist/",
                ),
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        Source(
            "fashion_mnist",
            partial(
                idx_pair, "fashion_mnist",
                places=("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist"),
                prefixes=("train", "t10k"), num_classes=10, normalise=NORMALISE["fashion_mnist"],
            ),
            "clothes, grey 28 x 28, 10 classes: 60,000 + 10,000",
            "`FashionMNIST/raw/`: as of `mnist`", "real files",
            idx_download(
                "Zalando Research", "FashionMNIST/raw",
                ("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",),
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
        Source(
            "cifar10",
            partial(
                cifar, "cifar10", places=("cifar-10-batches-py", "cifar-10-batches-bin"), stems=CIFAR10_FILES,
                key="labels", classes=(10,), normalise=NORMALISE["cifar10"],
            ),
            "objects, colour 32 x 32, 10 classes: 50,000 + 10,000",
            "`cifar-10-batches-py/` (pickles) or `cifar-10-batches-bin/`",
            "real pickles; made files of the binary version",
            cifar_download(
                "cifar-10-python.tar.gz", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                "cifar-10-batches-py", CIFAR10_FILES,
            ),
        ),
        Source(
            "cifar100",
            partial(
                cifar, "cifar100", places=("cifar-100-python", "cifar-100-binary"), stems=CIFAR100_FILES,
                key="fine_labels", classes=(20, 100), normalise=NORMALISE["cifar100"],
            ),
            "objects, colour 32 x 32, the 100 fine classes: 50,000 + 10,000",
            "`cifar-100-python/` (pickles) or `cifar-100-binary/`", "made files",
            cifar_download(
                "cifar-100-python.tar.gz", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                "cifar-100-python", CIFAR100_FILES,
            ),
        ),
        Source(
            "cifar10_grey", lambda folder: grey(load("cifar10", folder)),
            "`cifar10` turned into grey: luma in 0 to 1 (ITU-R BT.601)", "those of `cifar10`", "real pickles",
        ),
        _emnist(
            "letters", "letters a to z of either case, grey 28 x 28, 26 classes", 26, "real letters a to j; made files"
        ),
        _emnist("digits", "digits, 10 classes", 10),
        _emnist("balanced", "digits and letters, 47 classes of one size", 47),
        _emnist("byclass", "digits and letters, 62 classes", 62),
        _emnist("bymerge", "digits and letters, 47 classes: letters that look alike in both cases are one", 47),
        _emnist("mnist", "digits in the sizes of `mnist`, 10 classes", 10),
        Source(
            "emnist_letters_aj", lambda folder: letters_aj(load("emnist_letters", folder)),
            "letters a to j of `emnist_letters`, 10 classes, as FedProx has them: paper 1 and ink 0",
            "those of `emnist_letters`", "real letters",
        ),
        Source(
            "svhn", svhn, "digits of house numbers, colour 32 x 32, 10 classes (label 10 is digit 0): 73,257 + 26,032",
            "`{train,test}_32x32.mat`, also in `SVHN/`", "made files; arrays that MATLAB wrote",
            Download(
                "Stanford", "TensorFlow Datasets",
                (
                    _svhn("train", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
                    _svhn("test", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
                ),
            ),
        ),
        Source(
            "cinic10", partial(cinic10, valid=False),
            "objects, colour 32 x 32, 10 classes: 90,000 + 90,000, as Lee et al. (2022) train",
            "`{train,test}/<class>/*.png`, also in `CINIC-10/`; needs Pillow", "made files",
        ),
        Source(
            "cinic10_with_valid", partial(cinic10, valid=True), "the same with `valid/`: 180,000 + 90,000",
            "`{train,valid,test}/<class>/*.png`", "made files",
        ),
        Source(
            "images", images_and_masks,
            "images of your own, of one size, all grey or all in colour; never turned as EXIF may ask. "
            "`images:sites/*`, or folders with commas: each a natural client. `images:FOLDER?masks=FOLDER`: "
            "[masks](segmentation.md#files) of their pixels in the place of classes",
            "`{train,test}/<class>/*`: PNG, JPEG, BMP, WebP; masks PNG; needs Pillow", "made files", is_format=True,
            says={"masks": str, "classes": str, "ignored": str},
        ),
        Source(
            "leaf", leaf, "vectors as LEAF writes them; natural clients, test files held out",
            "`{train,test}/*.json`, also in `data/`", "made files", is_format=True,
        ),
        Source(
            "femnist", femnist, "images by writer, as LEAF writes them: grey 28 x 28, 62 classes, 1 is paper",
            "those of `leaf`", "made files", is_format=True,
        ),
        Source(
            "pfllib", pfllib,
            "clients that PFLlib's `generate_*.py` has made, images or features: natural clients, test files held out",
            "`{train,test}/0.npz`, `1.npz`, ..., `config.json`", "files that PFLlib's own code wrote", is_format=True,
        ),
        Source(
            "shakespeare", shakespeare,
            "windows of 80 characters by speaking role, each place with the next one, 82 ids; natural clients, the "
            "last fifth of a role held out. `shakespeare:FOLDER?roles=60&characters=4000`: 60 of the roles, their "
            "beginnings",
            "`all_data/*.json` (texts) or `{train,test}/*.json` (samples) of LEAF, also in `data/`, texts also as "
            "`.json.xz`", "real words; made samples", says={"roles": whole, "characters": whole},
        ),
        Source(
            "texts", texts,
            "text files: of classes, or plain, each a natural client whose next character is predicted. "
            "`texts:FOLDER?tokens=words&length=128&most=10000&least=5&least_clients=2`: words, the most tokens of a "
            "text, the largest vocabulary, how often a client must have a token, how many clients must have it",
            "`{train,test}/<class>/*.txt`, or `*.txt`: UTF-8; needs pandas", "made files", is_format=True,
            says={name: kinds_of_words()[name] for name in ("tokens", "length", "most", "least", "least_clients")},
        ),
        Source(
            "vehicle", vehicle, "100 features of sensors, 2 classes; natural clients",
            "`vehicle.mat` (cells X, Y), or the part published with Ditto, `vehicle_ditto_train.npz`",
            "real part; made `vehicle.mat`",
        ),
        Source(
            "vehicle_whole", whole_vehicle,
            "the same, refused unless all 43,695 examples of 23 clients are there, which published tables are of",
            "`vehicle.mat`", "made `vehicle.mat`",
        ),
        Source(
            "vehicle_like", lambda folder: vehicle_like(),
            "made-up data of that shape, comparable with nothing", "", "-",
        ),
    )
}  # fmt: skip


def load(name: str, folder: str | os.PathLike[str], **said: Any) -> Dataset:
    """Return a data set of `SOURCES`, images uint8 (N, C, H, W) where nothing else is said, in file order.

    Files may lie in `folder` itself too. IDX names may be written with a dot, `train-images.idx3-ubyte`. EMNIST images
    are turned upright and normalised with the constants of MNIST; letters a to z become classes 0 to 25. CIFAR pickles
    are read without running code that they may hold. CIFAR files do not say how many images they should hold, so one
    that was cut between two records of the binary version is not noticed. The examples in LEAF's test folder are rows
    of `train` that `held_out` marks, and `test` is a copy of them.

    Args:
        name: data set; `-` may stand for `_`.
        folder: where the files are.
        said: what else is said of them, such as `roles=60` of shakespeare.

    Raises:
        ValueError: the name is unknown, nothing or something else can be said of such files, files are missing, or a
            file breaks a rule of its format.
    """
    key = name.replace("-", "_")
    if key not in SOURCES:
        raise ValueError(f"name must be a data set with a loader, got {name!r}: use one of {', '.join(SOURCES)}")
    if unknown := [name for name in said if name not in SOURCES[key].says]:
        told = f"some of {', '.join(SOURCES[key].says)}" if SOURCES[key].says else "nothing"
        raise ValueError(f"of {key} one says {told}, got {unknown[0]!r}: leave it out")
    return SOURCES[key].load(local_path(folder), **said)


def download(name: str, folder: str | os.PathLike[str], *, progress: Callable[[str], Bar] | None = None) -> list[Path]:
    """Fetch a data set, so that `load(name, folder)` finds it; files that are there already are not fetched again.

    A file gets its name only when its checksum is the published one. Of an archive, only the files that `load` reads
    are unpacked; it may be removed then.

    Args:
        name: one of `SOURCES` that has a download; `-` may stand for `_`.
        folder: the data folder; it is made if need be.
        progress: makes the bar of a file, by its name.

    Returns:
        The files that `load` reads.

    Raises:
        ValueError: the name has no download, or a file of another content is in the way.
        DownloadError: no address gave the published file.
    """
    source = SOURCES.get(name.replace("-", "_"))
    if source is None or source.download is None:
        offered = ", ".join(one.name for one in SOURCES.values() if one.download)
        raise ValueError(
            f"name must be a data set with a published checksum, got {name!r}: use one of {offered}, or fetch it "
            "yourself"
        )
    return fetch(source.download.files, local_path(folder), progress)
