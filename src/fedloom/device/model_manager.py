"""The Model Manager: what a device keeps between rounds, on its disk."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

from fedloom.core import tree
from fedloom.core.errors import CodecError, StorageError
from fedloom.storage import files
from fedloom.storage.codec import decode, encode
from fedloom.storage.files import File
from fedloom.storage.store import Version

_NAME = re.compile(r"([0-9]{10})-([0-9]{10})-([0-9a-f]{32})\.safetensors")


class ModelManager:
    """A client's states, among them its personal model: one for each exchange whose fate the server may still decide.

    `folder` holds a file for each (round, exchange), whose name has its digest, so that the folder needs no index.
    `first`: the state before the first exchange. A server that is killed goes on from its last checkpoint and names an
    exchange from before; so states go once the server has a checkpoint on disk that came after them.

        exchanges   (0,0) (2,0)    | (3,0) (5,0) (5,1)     checkpoint after round 3: rounds 0, 1 and 2 are durable
        prune(3)     goes  stays   | stay: a server that is killed now may name (2,0) again
    """

    def __init__(self, folder: Path, first: Any) -> None:
        self.folder, self.first = folder, first
        self.keeps = bool(tree.leaves(first))  # or there is nothing to keep
        files.make(folder)
        self.files: dict[Version, File] = {}
        found: dict[Version, list[File]] = {}
        for name in files.names(folder):
            if match := _NAME.fullmatch(name):
                found.setdefault((int(match[1]), int(match[2])), []).append(File(name, match[3]))
            elif name.endswith(".part"):  # of a process that was killed
                files.remove(folder / name)
        for version, those in found.items():
            if len(those) == 1:
                self.files[version] = those[0]
            else:  # killed in `offer`, before the answer left: the server has accepted neither
                for file in those:
                    files.remove(folder / file.name)
        self._accepted: Version | None = None
        self.start_digest: str | None = None  # the digest of the state that was asked for last

    def state(self, accepted: Version | None, digest: str | None = None) -> Any:
        """Return the state that came about in the exchange that the server accepted last, and has this digest.

        Raises:
            StorageError: it is not here, damaged, or another one than the server accepted.
        """
        self._accepted, self.start_digest = accepted, None
        if accepted is None or not self.keeps:
            return self.first
        if accepted not in self.files:
            raise StorageError(
                f"this device holds states after (round, exchange) {sorted(self.files)}, the server last accepted "
                f"{accepted}: bring its state folder back, or let it join a run with run.stateless = true"
            )
        file = self.files[accepted]
        if digest not in (None, file.digest):
            raise StorageError(
                f"this device's state after (round, exchange) {accepted} is {file.digest[:8]}, and the server accepted "
                f"{digest!s:.8}: bring its own state folder back"
            )
        self.start_digest = file.digest
        try:
            return decode(files.read(self.folder, file), self.first)
        except CodecError as error:
            raise StorageError(f"{self.folder / file.name} does not fit this algorithm and model: {error}") from None

    def offer(self, state: Any, version: Version) -> str | None:
        """Write a new state, which follows from the one that was asked for; any other that does goes. Its digest."""
        if not self.keeps:
            return None
        data = encode(state)
        file = File(f"{version[0]:010d}-{version[1]:010d}-{files.digest(data)}.safetensors", files.digest(data))
        files.write(self.folder, file.name, data)
        files.sync(self.folder)
        for other in [v for v, f in self.files.items() if self._accepted is None or v > self._accepted]:
            self._forget(other, unless=file.name)
        self.files[version] = file
        return file.digest

    def prune(self, durable: int) -> None:
        """Delete what no server can name any more that has a checkpoint after so many rounds on its disk."""
        chain = sorted(self.files)
        for older, newer in itertools.pairwise(chain):
            if newer[0] < durable and self._accepted is not None and newer <= self._accepted:
                self._forget(older)

    def _forget(self, version: Version, unless: str = "") -> None:
        if (name := self.files.pop(version).name) != unless:
            files.remove(self.folder / name)
