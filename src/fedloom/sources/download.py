"""Published files from the net, only when asked for, by pooch: verified by their checksum before they get names."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
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


@dataclass(frozen=True)
class Download:
    """The published files of a data set.

    Attributes:
        publisher: whose addresses they are.
        checksums_by: who publishes their checksums.
        files: all that is fetched.
    """

    publisher: str
    checksums_by: str
    files: tuple[Remote, ...]


def fetch(files: Sequence[Remote], folder: Path, progress: Callable[[str], Bar] | None = None) -> list[Path]:
    """Fetch files, and return where those lie that are read: members of archives, or the files themselves.

    Raises:
        ValueError: a file of another content is in the way.
        DownloadError: no address gave the published file.
    """
    ready = []
    for remote in files:
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
