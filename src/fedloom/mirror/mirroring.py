"""The part of a run that copies its folder to an address of fsspec after each checkpoint."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedloom.coordinator.checkpoint import Checkpoint, Prefix
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.core.errors import DamageError, FedloomError, SettingError, StorageError, StorageWarning, warn
from fedloom.mirror.fetch import indexes
from fedloom.mirror.mirror_record import DIGEST, FILES, MirrorRecord, newest_record, older_records, place_of
from fedloom.mirror.object_store import ObjectStore, check_address
from fedloom.storage import files
from fedloom.storage.strict_json import MOST

Pieces = Mapping[str, int]  # bytes of the pieces of a log by their digests, in their order


class Mirroring(Part):
    """Copy of the run at an address. The run waits for it; one that fails is tried again after the next checkpoint."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._copy: MirrorCopy | None = None

    @classmethod
    def of(cls, job: Brief) -> Mirroring | None:
        return None if job.settings.mirror is None else cls(job.settings.mirror)

    def check(self, job: Brief) -> None:
        check_address(self.address)
        if job.federation.train.remote is not None and job.settings.engine == "devices":
            raise SettingError(
                "a mirror holds what a simulation needs to go on, and devices keep states of their own: leave mirror "
                "out, and keep copies of the server's folder with its keys and logs"
            )

    def begin(self, run: Running) -> None:
        """Refuse a mirror that does not answer, or holds anything but an earlier state of this run."""
        if run.files is None:
            raise SettingError("a mirror is a copy of a run's folder: name one (--out DIR), or leave mirror out")
        self._copy = MirrorCopy(ObjectStore(self.address), run.files)
        if run.files.checkpoints.rounds():
            self._copy.bring()

    def saved(self, run: Running) -> None:
        assert self._copy is not None
        try:
            self._copy.bring()
        except FedloomError as error:
            ends = run.done == run.job.settings.rounds or run.history.stopped is not None
            there = "nothing yet" if self._copy.round is None else f"round {self._copy.round}"
            then = "it is tried again after the next checkpoint"
            if ends and self._copy.round != run.done:
                then = "the run has ended, and its mirror is behind: resume the run, and the rest is copied"
            warn(f"mirror of round {run.done}: {error}. {self.address} holds {there}; {then}", StorageWarning)


class MirrorCopy:
    """A mirror that is brought up to a run's folder, again and again, by one process.

    Attributes:
        round: of the newest checkpoint in the mirror; None: it holds none.

    Args:
        store: the mirror.
        folder: of the run, which only this process writes.

    Raises:
        SettingError: the mirror holds another run, or more of this one than the folder.
        StorageError: the store does not answer.
    """

    def __init__(self, store: ObjectStore, folder: RunDirectory) -> None:
        self.store, self.folder = store, folder
        self.round: int | None = None
        self._checkpoints: dict[int, Checkpoint] = {}
        self._whole = set[str]()  # digests of files that were there whole before a record named them
        self._pieces: Mapping[str, Pieces] = {}
        store.try_out()
        record, self._number = newest_record(store)
        self._there = {name for name in store.sizes(FILES) if re.fullmatch(DIGEST, name)}
        if record is not None:
            self._go_on_from(record)

    def _go_on_from(self, record: MirrorRecord) -> None:
        logs = (self._is_beginning(name, pieces) for name, pieces in record.logs.items())
        if record.run != self.folder.checkpoints.identity.fingerprint or not all(logs):
            raise SettingError(
                f"{self.store.address} holds round {record.round} of another run than {self.folder.path}, or a later "
                "state of it: go on from there (the command with --resume and a new folder), or name another address"
            )
        with tempfile.TemporaryDirectory() as place:  # what these name is never written again
            _, checkpoints = indexes(self.store, record, Path(place))
        named = {file.digest for one in checkpoints for file in (one.server, *one.clients.values())}
        named |= {*record.documents.values(), *record.checkpoints.values()}
        self._whole = self._there & named.union(*record.logs.values())
        self._pieces, self.round = record.logs, record.round

    def _is_beginning(self, name: str, pieces: Pieces) -> bool:
        """Return whether a log in the folder begins with these pieces."""
        path, done = self.folder.path / name, 0
        data = files.load(path) if files.exists(path) else b""
        for digest, size in pieces.items():
            if len(data) < done + size or files.digest(data[done : done + size]) != digest:
                return False
            done += size
        return True

    def bring(self) -> None:
        """Copy what has changed: files first, then the record that names them; then delete what it does not name.

        Raises:
            StorageError: the store does not take it, or another process writes there; what it held is still whole.
        """
        self._check_alone()
        kept = self.folder.checkpoints
        rounds = kept.rounds()
        self._checkpoints = {t: self._checkpoints.get(t) or kept.read(t) for t in rounds}
        newest = self._checkpoints[rounds[-1]]
        documents = self._documents()
        paths = {digest: self.folder.path / name for name, digest in documents.items()}
        paths |= {one.digest: kept.index(round) for round, one in self._checkpoints.items()}
        for one in self._checkpoints.values():
            paths[one.server.digest] = kept.folder / one.server.name
            paths |= {f.digest: kept.clients / f.name for f in one.clients.values() if f.digest not in self._whole}
        named = set(paths).union(*({f.digest for f in one.clients.values()} for one in self._checkpoints.values()))
        logs = {name: self._cut(name, prefix) for name, prefix in newest.logs.items()}
        self._send(paths, logs)
        self._number += 1
        record = MirrorRecord(
            number=self._number,
            run=kept.identity.fingerprint,
            round=newest.round,
            documents=documents,
            logs=logs,
            checkpoints={str(round): one.digest for round, one in self._checkpoints.items()},
        )
        self.store.write({record.name: record.sealed()})
        if self.store.read(record.name, MOST) != record.sealed():
            raise StorageError(f"{self.store.address} does not return what was written there")
        self._whole, self._pieces, self.round = named.union(*logs.values()), logs, newest.round
        self._delete(self._there - self._whole)

    def _check_alone(self) -> None:
        _, number = newest_record(self.store)
        if number > self._number:
            raise StorageError(
                f"another process writes to {self.store.address}: the run goes on elsewhere, so stop it here, or go on "
                "here with another address"
            )

    def _documents(self) -> dict[str, str]:
        """Return the digests of the manifest, and of those that it names and that are there."""
        names = ["manifest.json", *self.folder.manifest()["documents"]]
        return {n: files.digest_of(self.folder.path / n) for n in names if files.exists(self.folder.path / n)}

    def _cut(self, name: str, prefix: Prefix) -> Pieces:
        """Return a log in pieces, of which each is shorter than the one before it.

        So there are few of them, and a byte travels a few times, however long the log becomes.
        """
        pieces, data = list(self._pieces.get(name, {}).items()), self._log(name)
        done = sum(size for _, size in pieces)
        if prefix.size > done:
            pieces.append((files.digest(data[done : prefix.size]), prefix.size - done))
        while len(pieces) > 1 and pieces[-1][1] >= pieces[-2][1]:
            size = pieces[-1][1] + pieces[-2][1]
            end = sum(size for _, size in pieces)
            pieces[-2:] = [(files.digest(data[end - size : end]), size)]
        return dict(pieces)

    def _log(self, name: str) -> bytes:
        return files.load(self.folder.path / name)

    def _send(self, paths: Mapping[str, Path], logs: Mapping[str, Pieces]) -> None:
        new = {digest: path for digest, path in paths.items() if digest not in self._whole}
        for digest, path in new.items():
            if files.digest_of(path) != digest:
                raise DamageError(f"{path} is not what was written there, and is not mirrored")
        pieces = dict[str, bytes]()
        for name, cut in logs.items():
            if all(digest in self._whole for digest in cut):
                continue
            data, done = self._log(name), 0
            for digest, size in cut.items():
                if digest not in self._whole:
                    pieces[digest] = data[done : done + size]
                done += size
        self._there |= {*new, *pieces}
        self.store.upload({place_of(digest): path for digest, path in new.items()})
        self.store.write({place_of(digest): data for digest, data in pieces.items()})

    def _delete(self, names: Iterable[str]) -> None:
        gone = sorted(names)
        self.store.remove([*older_records(self.store, self._number), *map(place_of, gone)])
        self._there -= {*gone}
