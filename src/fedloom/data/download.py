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


class DownloadError(OSError):
    """A file could not be fetched, or is not what was published; the message names every address and what it gave."""


@dataclass(frozen=True)
class Remote:
    """A published file.

    Attributes:
        path: where it goes, below the data folder.
        urls: addresses, tried one after the other.
        md5: published checksum. Two files of one MD5 can be made, but not a second file for the MD5 of a given one.
        limit: bytes that it may have at most.
        members: of an archive, the files to unpack: name in the archive -> path below the data folder.
    """

    path: str
    urls: tuple[str, ...]
    md5: str
    limit: int
    members: Mapping[str, str] = field(default_factory=dict)


def _idx(folder: str, bases: tuple[str, ...], limit: int, *md5s: str) -> tuple[Remote, ...]:
    stems = (f"{prefix}-{part}-ubyte.gz" for prefix in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))
    return tuple(
        Remote(f"{folder}/{stem}", tuple(base + stem for base in bases), md5, limit)
        for stem, md5 in zip(stems, md5s, strict=True)
    )


def _emnist(split: str) -> tuple[Remote, ...]:
    parts = (f"{part}-{kind}-ubyte.gz" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1"))
    names = [f"emnist-{split}-{part}" for part in parts]
    urls = (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    )
    members = {f"gzip/{name}": f"EMNIST/raw/{name}" for name in names}
    return (Remote("EMNIST/raw/gzip.zip", urls, "58c8d27c78d21e728a6bc7b3cc06412e", 768 * _MIB, members),)


def _cifar(archive: str, md5: str, folder: str, *names: str) -> tuple[Remote, ...]:
    members = {f"{folder}/{name}": f"{folder}/{name}" for name in names}
    return (Remote(archive, (f"https://www.cs.toronto.edu/~kriz/{archive}",), md5, 256 * _MIB, members),)


def _svhn(part: str, md5: str) -> Remote:
    name = f"{part}_32x32.mat"
    return Remote(f"SVHN/{name}", (f"http://ufldl.stanford.edu/housenumbers/{name}",), md5, 256 * _MIB)


# Checksums as their publishers or torchvision give them. A data set without such a checksum is not here.
DOWNLOADS: dict[str, tuple[Remote, ...]] = {
    "mnist": _idx(
        "MNIST/raw",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
        16 * _MIB,
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion_mnist": _idx(
        "FashionMNIST/raw",
        (
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        32 * _MIB,
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "cifar10": _cifar(
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        *(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
    ),
    "cifar100": _cifar(
        "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python", "train", "test"
    ),
    "svhn": (
        _svhn("train", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        _svhn("test", "eb5a983be6a315427106f1b164d9cef3"),
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
        if (found := _md5(path)) != remote.md5:
            raise ValueError(f"{path}: must have the MD5 {remote.md5}, got {found}: move the file away to fetch it")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    problems = []
    for url in remote.urls:
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            resumed = part.is_file() and part.stat().st_size > 0
            try:
                _fetch(url, part, path.name, remote.limit, progress)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problems.append(f"{url}: {error}")
                continue
            if (found := _md5(part)) == remote.md5:
                part.replace(path)
                return path
            part.unlink()
            problems.append(f"{url}: MD5 {found} instead of {remote.md5}")
            if not resumed:  # a whole file of another content: asking again would give the same
                break
    said = "; ".join(dict.fromkeys(problems))
    raise DownloadError(
        f"{path.name} could not be fetched ({said}): try again later, or put the file into {path.parent}"
    )


def _fetch(url: str, part: Path, name: str, limit: int, progress: Progress | None) -> None:
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
                if not (chunk := answer.read(_CHUNK)):
                    break
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(name, have, total)
    if total is not None and have < total:
        raise DownloadError(f"the connection broke off after {have} of {total} bytes")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


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
