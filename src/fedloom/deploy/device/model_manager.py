"""Model Manager: a device's states between rounds, on its disk."""

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
    """States of a client, its personal model among them: one for each exchange that the server may still accept.

    `folder` holds a file for each (round, exchange). Its name has the digest of the state, so the folder needs no
    index. `first`: the state before the first exchange. A killed server resumes from its last checkpoint and names an
    exchange before it. So a state is deleted once the server has a later checkpoint on its disk.

        exchanges   (0,0)    (2,0)   | (3,0) (5,0) (5,1)     checkpoint after round 3: rounds 0, 1 and 2 are durable
        prune(3)    deleted  stays   | stay: a server that is killed now may name (2,0) again
    """

    def __init__(self, folder: Path, first: Any) -> None:
        self.folder, self.first = folder, first
        self.has_state = bool(tree.leaves(first))  # False: the client keeps nothing
        files.make(folder)
        self.files: dict[Version, File] = {}
        by_version: dict[Version, list[File]] = {}
        for name in files.names(folder):
            if match := _NAME.fullmatch(name):
                by_version.setdefault((int(match[1]), int(match[2])), []).append(File(name, match[3]))
            elif name.endswith(".part"):  # of a process that was killed
                files.remove(folder / name)
        for version, written in by_version.items():
            if len(written) == 1:
                self.files[version] = written[0]
            else:  # killed in `offer`, before the answer was sent: none was accepted
                for file in written:
                    files.remove(folder / file.name)
        self._accepted: Version | None = None
        self.start_digest: str | None = None  # of the state that `state` returned last

    def state(self, accepted: Version | None, digest: str | None = None) -> Any:
        """Return the state of the exchange that the server accepted last, with this digest.

        Raises:
            StorageError: it is missing, damaged, or another one than the server accepted.
        """
        self._accepted, self.start_digest = accepted, None
        if accepted is None or not self.has_state:
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
        """Write the state that follows the one returned last, replacing its alternatives; return its digest."""
        if not self.has_state:
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
        """Delete states that no server can name any more; `durable`: rounds before its last checkpoint on disk."""
        versions = sorted(self.files)
        for older, newer in itertools.pairwise(versions):
            if newer[0] < durable and self._accepted is not None and newer <= self._accepted:
                self._forget(older)

    def _forget(self, version: Version, unless: str = "") -> None:
        if (name := self.files.pop(version).name) != unless:
            files.remove(self.folder / name)
