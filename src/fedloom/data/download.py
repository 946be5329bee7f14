"""Published files from the net, only when asked for, by pooch: verified by their checksum before they get names."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_RETRIES = 2  # after a first attempt that failed, at each address


class DownloadError(OSError):
    """A file could not be fetched, or is not what was published; the message names every address and what it gave."""


class Bar(Protocol):
    """Progress bar that is told of a file's bytes as they come, as pooch uses it; tqdm's is one."""

    total: float

    def update(self, count: int, /) -> object: ...
    def reset(self) -> object: ...
    def close(self) -> object: ...


@dataclass(frozen=True)
class Remote:
    """A file that the authors of a data set have published.

    Attributes:
        path: where it goes, below the data folder.
        urls: addresses, tried one after the other.
        sha256: published checksum.
        members: of an archive, the files to unpack: name in the archive -> path below the data folder.
    """

    path: str
    urls: tuple[str, ...]
    sha256: str
    members: Mapping[str, str] = field(default_factory=dict)


def _idx(folder: str, bases: tuple[str, ...], *sums: str) -> tuple[Remote, ...]:
    stems = (f"{prefix}-{part}-ubyte.gz" for prefix in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))
    return tuple(
        Remote(f"{folder}/{stem}", tuple(base + stem for base in bases), checksum)
        for stem, checksum in zip(stems, sums, strict=True)
    )


def _emnist(split: str) -> tuple[Remote, ...]:
    parts = (f"{part}-{kind}-ubyte.gz" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1"))
    names = [f"emnist-{split}-{part}" for part in parts]
    urls = (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    )
    checksum = "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
    members = {f"gzip/{name}": f"EMNIST/raw/{name}" for name in names}
    return (Remote("EMNIST/raw/gzip.zip", urls, checksum, members),)


def _cifar(archive: str, checksum: str, folder: str, *names: str) -> tuple[Remote, ...]:
    members = {f"{folder}/{name}": f"{folder}/{name}" for name in names}
    return (Remote(archive, (f"https://www.cs.toronto.edu/~kriz/{archive}",), checksum, members),)


def _svhn(part: str, checksum: str) -> Remote:
    name = f"{part}_32x32.mat"
    return Remote(f"SVHN/{name}", (f"https://ufldl.stanford.edu/housenumbers/{name}",), checksum)


# SHA-256 as TensorFlow Datasets (url_checksums/) and, for CIFAR, Keras publish them. A data set without is not here.
DOWNLOADS: dict[str, tuple[Remote, ...]] = {
    "mnist": _idx(
        "MNIST/raw",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion_mnist": _idx(
        "FashionMNIST/raw",
        ("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",),
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "cifar10": _cifar(
        "cifar-10-python.tar.gz",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        "cifar-10-batches-py",
        *(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
    ),
    "cifar100": _cifar(
        "cifar-100-python.tar.gz",
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        "cifar-100-python",
        "train",
        "test",
    ),
    "svhn": (
        _svhn("train", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
        _svhn("test", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    ),
    **{f"emnist_{s}": _emnist(s) for s in ("letters", "digits", "balanced", "byclass", "bymerge", "mnist")},
}


def download(name: str, folder: str | os.PathLike[str], *, progress: Callable[[str], Bar] | None = None) -> list[Path]:
    """Fetch a data set, so that `load(name, folder)` finds it; files that are there already are not fetched again.

    A file gets its name only when its checksum is the published one. Of an archive, only the files that `load` reads
    are unpacked; it may be removed then.

    Args:
        name: one of `DOWNLOADS`; `-` may stand for `_`.
        folder: the data folder; it is made if need be.
        progress: makes the bar of a file, by its name.

    Returns:
        The files that `load` reads.

    Raises:
        ValueError: the name has no download, or a file of another content is in the way.
        DownloadError: no address gave the published file.
    """
    key, folder = name.replace("-", "_"), Path(folder)
    if key not in DOWNLOADS:
        raise ValueError(
            f"name must be a data set with a published checksum, got {name!r}: use one of "
            f"{', '.join(DOWNLOADS)}, or fetch it yourself"
        )
    ready = []
    for remote in DOWNLOADS[key]:
        targets = [folder / path for path in remote.members.values()]
        # Members were renamed when they were whole: they are there, or they are not.
        if not targets or not all(path.is_file() for path in targets):
            archive = _fetched(remote, folder, progress)
            if targets:
                _unpack(archive, dict(zip(remote.members, targets, strict=True)))
        ready += targets or [folder / remote.path]
    return ready


def _fetched(remote: Remote, folder: Path, progress: Callable[[str], Bar] | None) -> Path:
    """Return the file of the published content, fetched if it is not there."""
    import pooch  # with what it needs a tenth of a second, and few commands fetch anything

    pooch.get_logger().setLevel("WARNING")  # the bar says the rest
    path = folder / remote.path
    if path.is_file() and (found := pooch.file_hash(str(path))) != remote.sha256:  # else pooch would replace it
        raise ValueError(f"{path}: must have the SHA-256 {remote.sha256}, got {found}: move the file away to fetch it")
    problems = []
    for url in remote.urls:
        shelf = pooch.create(
            folder, "", registry={remote.path: remote.sha256}, urls={remote.path: url}, retry_if_failed=_RETRIES
        )
        bar = progress(path.name) if progress is not None else False
        try:
            return Path(shelf.fetch(remote.path, downloader=pooch.HTTPDownloader(bar, chunk_size=2**18)))
        except (OSError, ValueError) as error:  # no connection, another status, another content
            problems.append(f"{url}: {error}")
    raise DownloadError(
        f"{path.name} could not be fetched ({'; '.join(problems)}): try again later, or put the file into {path.parent}"
    )


def _unpack(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Put members of an archive in their places, each when all of it is there."""
    import pooch

    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        kind = pooch.Unzip if zipfile.is_zipfile(archive) else pooch.Untar
        kind(members=[*wanted], extract_dir=folder)(str(archive), "download", None)
        if missing := [member for member in wanted if not Path(folder, member).is_file()]:
            raise DownloadError(
                f"{archive} holds no {', '.join(missing)}, which it should: remove it and fetch it again"
            )
        for member, target in wanted.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(folder, member).replace(target)
