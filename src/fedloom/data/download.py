"""Published files from the net, only when asked for: resumed where they broke off, verified before they get names."""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

Progress = Callable[[str, int, int | None], None]

_MIB = 2**20
_CHUNK = 2**18
_ATTEMPTS = 3
_PAUSE = 1.0  # seconds before another attempt
_TIMEOUT = 30.0  # seconds without a byte
_LONGEST = 7200.0  # seconds for a file, from all its addresses


class DownloadError(OSError):
    """A file could not be fetched, or is not what was published; the message names every address and what it gave."""


@dataclass(frozen=True)
class Remote:
    """A file that the authors of a data set have published.

    Attributes:
        path: where it goes, below the data folder.
        urls: addresses, tried one after the other.
        sha256: published checksum.
        limit: bytes that it may have at most.
        members: of an archive, the files to unpack: name in the archive -> path below the data folder.
    """

    path: str
    urls: tuple[str, ...]
    sha256: str
    limit: int
    members: Mapping[str, str] = field(default_factory=dict)


def _idx(folder: str, bases: tuple[str, ...], limit: int, *sums: str) -> tuple[Remote, ...]:
    stems = (f"{prefix}-{part}-ubyte.gz" for prefix in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))
    return tuple(
        Remote(f"{folder}/{stem}", tuple(base + stem for base in bases), checksum, limit)
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
    return (Remote("EMNIST/raw/gzip.zip", urls, checksum, 768 * _MIB, members),)


def _cifar(archive: str, checksum: str, folder: str, *names: str) -> tuple[Remote, ...]:
    members = {f"{folder}/{name}": f"{folder}/{name}" for name in names}
    return (Remote(archive, (f"https://www.cs.toronto.edu/~kriz/{archive}",), checksum, 256 * _MIB, members),)


def _svhn(part: str, checksum: str) -> Remote:
    name = f"{part}_32x32.mat"
    return Remote(f"SVHN/{name}", (f"https://ufldl.stanford.edu/housenumbers/{name}",), checksum, 256 * _MIB)


# SHA-256 as TensorFlow Datasets (url_checksums/) and, for CIFAR, Keras publish them. A data set without is not here.
DOWNLOADS: dict[str, tuple[Remote, ...]] = {
    "mnist": _idx(
        "MNIST/raw",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        16 * _MIB,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion_mnist": _idx(
        "FashionMNIST/raw",
        ("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",),
        32 * _MIB,
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


def download(name: str, folder: str | os.PathLike[str], *, progress: Progress | None = None) -> list[Path]:
    """Fetch a data set, so that `load(name, folder)` finds it; files that are there already are not fetched again.

    What has arrived of a file is kept beside it as `.part`, and the next attempt asks for the rest. A file gets its
    name only when its checksum is the published one. Of an archive, only the files that `load` reads are unpacked; it
    may be removed then.

    Args:
        name: one of `DOWNLOADS`; `-` may stand for `_`.
        folder: the data folder; it is made if need be.
        progress: called with the file's name, the bytes there so far and, where the server says, those of the whole.

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
            archive = _verified(remote, folder / remote.path, progress)
            _unpack(archive, {member: folder / path for member, path in remote.members.items()})
        ready += targets or [folder / remote.path]
    return ready


def _verified(remote: Remote, path: Path, progress: Progress | None) -> Path:
    """The file of the published content, fetched if it is not there."""
    if path.is_file():
        if (found := _sha256(path)) != remote.sha256:
            raise ValueError(
                f"{path}: must have the SHA-256 {remote.sha256}, got {found}: move the file away to fetch it"
            )
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    problems = []
    end = time.monotonic() + _LONGEST
    for url in remote.urls:
        for attempt in range(_ATTEMPTS):
            if time.monotonic() > end:
                break
            if attempt:
                time.sleep(_PAUSE)
            resumed = part.is_file() and part.stat().st_size > 0
            try:
                _fetch(url, part, path.name, remote.limit, end, progress)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problems.append(f"{url}: {error}")
                continue
            if (found := _sha256(part)) == remote.sha256:
                part.replace(path)
                return path
            part.unlink()
            problems.append(f"{url}: SHA-256 {found} instead of {remote.sha256}")
            if not resumed:  # a whole file of another content: asking again would give the same
                break
    reasons = "; ".join(dict.fromkeys(problems))
    raise DownloadError(
        f"{path.name} could not be fetched ({reasons}): try again later, or put the file into {path.parent}"
    )


def _fetch(url: str, part: Path, name: str, limit: int, end: float, progress: Progress | None) -> None:
    """Append to `part` what is missing of it, or write it anew if the server cannot give a part."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "fedloom", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # nothing is missing; the checksum decides
                return
            raise DownloadError(f"status {error.code} {error.reason}") from None
    with closing(answer):
        if url.startswith("https:") and not answer.url.startswith("https:"):
            raise DownloadError(f"leads to {answer.url}, which is not encrypted")
        if have and answer.status == 206 and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink()
            raise DownloadError("another part than asked for")
        if answer.status != 206:
            have = 0
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        with part.open("ab" if have else "wb") as file:
            while True:
                if max(have, total or 0) > limit:
                    file.truncate(0)
                    raise DownloadError(f"more than the {limit} bytes that the file may have")
                if time.monotonic() > end:
                    raise DownloadError(f"not whole after {_LONGEST:g} seconds; what came is kept for the next time")
                if not (chunk := answer.read1(_CHUNK)):  # as it comes: read() would wait for a whole chunk
                    break
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(name, have, total)
    if total is not None and have < total:
        raise DownloadError(f"the connection broke off after {have} of {total} bytes")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(archive: Path, wanted: dict[str, Path]) -> None:
    """Write the members `wanted` of an archive; their names are compared and never used as paths."""
    missing = dict(wanted)
    with closing(_members(archive, wanted)) as members:
        for name, file, size in members:
            if (path := missing.pop(name, None)) is None:
                raise ValueError(f"{archive}: members must have different names, got {name} twice: fetch it again")
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            with part.open("wb") as out:
                left = size
                while left and (chunk := file.read(min(left, _CHUNK))):
                    out.write(chunk)
                    left -= len(chunk)
            if left:
                raise ValueError(f"{archive}: {name} must have {size} bytes, got {size - left}: fetch it again")
            part.replace(path)
    if missing:
        raise ValueError(f"{archive}: must hold {', '.join(wanted)}, got no {', '.join(missing)}: fetch it again")


def _members(archive: Path, wanted: Mapping[str, Path]) -> Generator[tuple[str, IO[bytes], int], None, None]:
    """Yield name, content and size of the regular files among `wanted`."""
    if not wanted:
        return
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if info.filename in wanted:
                    _check_member(archive, info.filename, info.file_size, regular=not info.is_dir())
                    with zipped.open(info) as file:
                        yield info.filename, file, info.file_size
        return
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            if member.name in wanted:
                _check_member(archive, member.name, member.size, regular=member.isreg())
                file_or_none = tar.extractfile(member)
                assert file_or_none is not None  # it is regular
                yield member.name, file_or_none, member.size


def _check_member(archive: Path, name: str, size: int, regular: bool) -> None:
    if not regular or size > 1024 * _MIB:
        what = f"{size} bytes" if regular else "a link or a folder"
        raise ValueError(f"{archive}: {name} must be a regular file of at most 1 GiB, got {what}: do not unpack it")
