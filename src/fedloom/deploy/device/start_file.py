"""Keep the tensors with which a network starts in a file of the device between runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedloom.core.errors import CodecError, RefusedError, StorageError
from fedloom.core.model import Model
from fedloom.deploy.initial_weights import Offer
from fedloom.experiments.weights_file import load_network
from fedloom.storage import files

_KEPT = 4  # files in the folder, whole or in part: no server fills the disk
_NAME = re.compile(r"[0-9a-f]{32}(\.part)?\.safetensors")


class StartFile:
    """The file of the start that a server offers, in a folder of such files, each of which has its digest as name.

    It is there from an earlier run, or comes in parts, from where an earlier transfer broke off.

        DIGEST.safetensors         whole: read if its bytes have that digest, else it goes and comes anew
        DIGEST.part.safetensors    what has come so far; whole once the digest is right and the network takes it

    `has`: bytes that are here. `network`: the one that begins with the tensors of the file, None before it is whole.
    """

    def __init__(self, folder: Path, model: Model, offer: bytes) -> None:
        self.model, self.offer = model, Offer.read(offer, model)
        self.has = 0
        self._whole = folder / f"{self.offer.digest}.safetensors"
        self._part = folder / f"{self.offer.digest}.part.safetensors"
        self.network: Model | None = None
        files.make(folder, private=True)
        self._make_room(folder)
        if self._whole.is_file():
            if files.digest_of(self._whole) == self.offer.digest:
                self._use(self._whole)
                os.utime(self._whole)
                return
            files.remove(self._whole)
        if self._part.is_file():
            self.has = self._part.stat().st_size
        if self.has > self.offer.size:
            files.remove(self._part)
            self.has = 0
        self._end()

    def take(self, message: bytes) -> None:
        """Write what has come of the file; the disk has it before the server hears so.

        Raises:
            RefusedError: it is not what is due; or it is the last part, and the file is not what the server offered.
            StorageError: the disk does not take it.
        """
        piece = self.offer.part(message, self.has)
        try:
            with self._part.open("ab") as file:
                file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"cannot write {self._part}: {error.strerror}; make room for the start") from error
        self.has += len(piece)
        self._end()

    def _end(self) -> None:
        """Keep the file if it is whole, and is what it is said to be."""
        if self.has < self.offer.size:
            return
        try:
            if files.digest_of(self._part) != self.offer.digest:
                raise RefusedError(
                    f"the start that has come has another digest than {self.offer.digest}, and is removed: it was "
                    "damaged, or is another file than the server has offered; join again"
                )
            self._use(self._part)
        except RefusedError:
            files.remove(self._part)
            raise
        files.rename(self._part, self._whole)
        files.sync(self._whole.parent)

    def _use(self, path: Path) -> None:
        try:
            self.network = load_network(path, self.model)
        except CodecError as error:
            raise RefusedError(f"the start does not fit the network of this device: {error}") from None
        self.has = self.offer.size

    def _make_room(self, folder: Path) -> None:
        """Delete the files that were used longest ago, so that few are left beside the one that is offered."""
        others = [folder / name for name in files.names(folder) if _NAME.fullmatch(name)]
        others = [path for path in others if path not in (self._whole, self._part)]
        for path in sorted(others, key=lambda path: -path.lstat().st_mtime)[_KEPT - 1 :]:
            files.remove(path)
