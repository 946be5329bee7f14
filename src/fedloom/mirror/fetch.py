"""Bring a run from its mirror to a new folder, where it goes on bit for bit; every byte is proved."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.checkpoint import Checkpoint, Checkpoints, identity
from fedloom.coordinator.run_folders import check_free
from fedloom.coordinator.verification import verify
from fedloom.core.errors import DamageError, SettingError
from fedloom.display.terminal import Terminal
from fedloom.mirror.mirror_record import RECORDS, MirrorRecord, newest_record, place_of
from fedloom.mirror.object_store import ObjectStore, below
from fedloom.storage import files
from fedloom.storage.strict_json import LARGEST

_MANIFEST = "manifest.json"
_DEEPEST = 6  # folders below an address in which runs are sought
_TRIES = 5  # of a mirror whose run goes on meanwhile


def fetch(address: str, directory: str | os.PathLike[str]) -> int:
    """Copy the run in a mirror to a folder, from which it is resumed; it is there whole or not at all.

    Args:
        address: of the mirror, as the setting `mirror` had it.
        directory: a new folder.

    Returns:
        The round of its newest checkpoint.

    Raises:
        SettingError: the address is none, holds no run, or the folder is not free.
        StorageError: the mirror does not answer, or the folder cannot be written.
        DamageError: what the mirror holds is not what the run wrote.
    """
    check_free(directory)
    folder, store = files.path_of(directory).absolute(), ObjectStore(address)
    if files.names(folder):
        raise SettingError(f"{folder} holds other files, and a run is fetched to a folder of its own: name a new one")
    record, tries = _record_in(store), 0
    files.make(folder.parent)
    while True:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as place:
            run, tries = Path(place, "run"), tries + 1
            try:
                take(store, record, run)
            except DamageError:
                before, record = record, _record_in(store)
                if record.number == before.number or tries == _TRIES:
                    raise
                continue  # its run went on, and what only the older record named is gone
            if not (verdict := verify(run)).whole:
                raise DamageError(f"{address} does not hold what the run wrote: {verdict.problems[0]}")
            files.rename(run, folder)
        files.sync(folder.parent)
        return record.round


def take(store: ObjectStore, record: MirrorRecord, run: Path) -> None:
    """Copy what a record names to a folder.

    Raises:
        DamageError: a file is missing or not what was written; nothing is used of one that is not.
        StorageError: the mirror does not answer, or the disk does not take it.
    """
    kept, checkpoints = indexes(store, record, run)
    _copy(store, {run / name: digest for name, digest in record.documents.items() if name != _MANIFEST})
    files.make(kept.clients)
    _copy(store, {path: file.digest for one in checkpoints for path, file in kept.states(one).items()})
    for name, pieces in record.logs.items():
        files.write(run, name, [_piece(store, digest, size) for digest, size in pieces.items()])


def indexes(store: ObjectStore, record: MirrorRecord, run: Path) -> tuple[Checkpoints, list[Checkpoint]]:
    """Copy the manifest and the indexes that a record names to a folder, and return what they say.

    Raises:
        DamageError: one is not what the run wrote, or of another run.
        StorageError: the mirror does not answer.
    """
    kept, rounds = Checkpoints(run / "checkpoints"), {int(t): digest for t, digest in record.checkpoints.items()}
    files.make(kept.folder)
    if _MANIFEST not in record.documents:
        raise DamageError(f"{store.address} names no {_MANIFEST} and so is not what a run wrote")
    _copy(store, {run / _MANIFEST: record.documents[_MANIFEST]})
    manifest = reading.manifest(run)
    kept.identity = identity(manifest)
    if record.run != kept.identity.fingerprint or set(record.logs) != set(kept.identity.logs):
        raise DamageError(f"{store.address} holds the files of two runs")
    if not {*record.documents} <= {*manifest["documents"], _MANIFEST}:
        raise DamageError(f"{store.address} holds documents that its manifest does not name")
    _copy(store, {kept.index(round): digest for round, digest in rounds.items()})
    return kept, [kept.read(round) for round in sorted(rounds)]


def _copy(store: ObjectStore, wanted: Mapping[Path, str]) -> None:
    """Copy files by their digests, and compare."""
    store.download({path: place_of(digest) for path, digest in wanted.items()})
    for path, digest in wanted.items():
        if path.suffix == ".json" and path.stat().st_size > LARGEST:  # which would be read into memory
            raise DamageError(f"{path.name} in {store.address} has more bytes than a run writes")
        if files.digest_of(path) != digest:
            raise DamageError(f"{path.name} in {store.address} is not what was written there: damaged or changed")
        files.sync(path)


def _piece(store: ObjectStore, digest: str, size: int) -> bytes:
    data = store.read(place_of(digest), size)
    if len(data) != size or files.digest(data) != digest:
        raise DamageError(f"a log in {store.address} is not what was written there: damaged or changed")
    return data


def _record_in(store: ObjectStore) -> MirrorRecord:
    record, _ = newest_record(store)
    if record is None:
        raise SettingError(
            f"{store.address} holds no whole run: name the address that run.mirror had, or begin the run anew"
        )
    return record


# ---- where runs begin and go on


def fetched(address: str, directory: Path, *, resume: bool) -> str:
    """Fetch a run that goes on and has not begun in a folder; return what was done, in words.

    Raises:
        SettingError: the mirror cannot be reached, or holds a run, and a new one would begin.
    """
    if files.exists(directory / _MANIFEST):
        return ""
    store = ObjectStore(address)
    store.try_out()
    record, _ = newest_record(store)
    if record is None:
        return ""
    if not resume:
        raise SettingError(
            f"{address} holds round {record.round} of a run: go on with it (--resume), or name another address for the "
            "mirror of a new one"
        )
    return f"round {fetch(address, directory)} fetched from {address}"


def fetch_runs(args: argparse.Namespace, console: Terminal) -> int:
    """Fetch every run below an address (`fedloom fetch`)."""
    store = ObjectStore(args.address)
    places = _places(store)
    if not places:
        _record_in(store)
    for place in places:
        address, folder = below(args.address, place), Path(args.directory, place)
        round = fetch(address, folder)
        console.print(f"{folder}: round {round}", highlight=False)
        named = reading.mapping(folder / "settings.json").get("run", {}).get("mirror")
        if named != address:
            console.print(f"its settings name another mirror, {named!r}: --mirror {address} keeps this one")
    console.print(f"go on: fedloom resume {args.directory}", highlight=False)
    return 0


def _places(store: ObjectStore, place: str = "", depth: int = 0) -> Sequence[str]:
    """Return the folders below an address that hold runs, `.` for itself."""
    names = store.folders(place)
    if RECORDS in names:
        return [place or "."]
    inner = (f"{place}/{name}".lstrip("/") for name in names if depth < _DEEPEST)
    return [found for one in inner for found in _places(store, one, depth + 1)]
