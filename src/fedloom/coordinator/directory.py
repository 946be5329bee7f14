"""The directory of a run: how it was asked for, its facts, its logs and checkpoints."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.checkpoint import (
    BESIDE,
    LOGS,
    MAY_DIFFER,
    PER_CLIENT,
    Checkpoint,
    Checkpoints,
    identity,
)
from fedloom.coordinator.descriptions import completed, differences, plain
from fedloom.coordinator.history import History, Record
from fedloom.coordinator.run_digests import ALONE, Log, check_beginning, check_named, left_by_a_kill, read_log
from fedloom.coordinator.verification import warn_unless_whole
from fedloom.core.errors import DamageError, SettingError, SettingWarning, StorageError, StorageWarning, warn
from fedloom.engines.engine import Engine
from fedloom.storage import files
from fedloom.storage.output import path_below
from fedloom.storage.strict_json import SETTINGS, Object, document, parse
from fedloom.wording import some_of

_OWN = {"algorithm", "hyper_parameters"}  # of a branch, from where it leaves the other run
_TENSORS = ".safetensors"  # what networks with frozen parts begin with: the documents that are no JSON
_written = dict[str, Path]()  # such files by digest: runs of a comparison, and branches, have links of one
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}  # of network file systems


class RunDirectory:
    """Files of one run; see `docs/runs.md` for the layout. Only one process at a time may write in it."""

    def __init__(self, path: str | os.PathLike[str], keep_every: int = 10) -> None:
        self.path = files.path_of(path).absolute()  # wherever a callback of the run's owner goes
        self.checkpoints = Checkpoints(self.path / "checkpoints", keep_every)
        self._logs: list[Log] = []
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> RunDirectory:
        files.make(self.path)
        for name in (".lock", *LOGS, PER_CLIENT, "set-aside", "checkpoints/clients"):
            path_below(self.path, name)
        try:
            self._lock = (self.path / ".lock").open("wb")
        except OSError as error:
            raise StorageError(f"cannot write in {self.path}: {error.strerror}; name another directory") from error
        with suppress(ImportError):  # on Windows nothing guards against two processes
            import fcntl

            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._unguarded(error)
        return self

    def _unguarded(self, error: OSError) -> None:
        if error.errno in _NO_LOCKS:
            warn(
                f"the file system of {self.path} has no locks ({error.strerror}): nothing guards the run against a "
                "second process, so start none",
                StorageWarning,
            )
            return
        if self._lock is not None:
            self._lock.close()
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise SettingError(f"{self.path} is being written by another process; wait for it or stop it") from None
        raise StorageError(f"cannot lock {self.path}: {error.strerror}; name another directory") from error

    def __exit__(self, *_: object) -> None:
        for log in self._logs:
            with suppress(OSError):  # what a full disk did not take has been reported
                log.file.close()
        if self._lock is not None:
            self._lock.close()

    @property
    def begun(self) -> bool:
        """True where a run was started here, however far it came."""
        return files.exists(self.path / "manifest.json")

    def begin(self, documents: Mapping[str, Any]) -> None:
        """Write `documents` and open empty logs.

        `documents`: by name, what is in NAME.json, or the pieces of a file of tensors.

        Raises:
            DamageError: the directory holds more than a process leaves that was killed before its first checkpoint.
        """
        check_beginning(self.path, self.checkpoints)
        self._write(documents, documents["manifest"])
        self._open(dict.fromkeys(self.logs, b""), "wb")

    def update(self, documents: Mapping[str, Any]) -> None:
        """Write down settings that may differ when a run goes on, such as its number of rounds."""
        stored, new = self.manifest(), documents["manifest"]
        known = {name: value for name, value in new["run"].items() if name in stored["run"]}
        manifest = {**stored, "run": known}  # its checkpoints know the run by what it wrote down
        if "start" in new:
            manifest["start"] = new["start"]
        else:
            manifest.pop("start", None)
        self._write(documents, manifest)

    def _write(self, documents: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        """Write documents such that at every moment the manifest has the digests of what is there."""
        contents: dict[str, Sequence[bytes | memoryview]] = {n: c for n, c in documents.items() if _is_tensors(n)}
        in_words = documents.keys() - contents.keys() - {"manifest"}
        contents |= {f"{n}.json": [document(documents[n])] for n in in_words}
        there = {name: files.digest_of(self.path / name) for name in contents if files.exists(self.path / name)}
        new = {name: [_digest(data)] for name, data in contents.items()}
        changed = {name: data for name, data in contents.items() if there.get(name) != new[name][0]}
        if not self.begun:  # somebody's own files
            aside = files.Quarantine(self.path)
            for name in changed.keys() & there.keys():
                aside.copy(self.path / name)
            aside.say("have names that a run needs")
        elif changed:
            old = {name: [digest] for name, digest in there.items() if name in changed}
            self._write_manifest({**manifest, "documents": {name: [*old.get(name, []), *new[name]] for name in new}})
        for name, data in changed.items():
            other = _written.get(new[name][0])
            if other is not None and other.is_file() and files.digest_of(other) == new[name][0]:
                files.link(other, self.path, name)
                continue
            files.write(self.path, name, data)
            if _is_tensors(name):
                _written[new[name][0]] = self.path / name
        self._write_manifest({**manifest, "documents": new})

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        data = reading.sealed(manifest, indent=2)
        if not self.begun or files.load(self.path / "manifest.json") != data:
            files.sync(self.path)
            files.write(self.path, "manifest.json", data)
            files.sync(self.path)
        self.checkpoints.identity = identity(manifest)

    @property
    def logs(self) -> tuple[str, ...]:
        """The names of the run's logs."""
        return self.checkpoints.identity.logs

    def record(self, lines: Mapping[str, Record]) -> None:
        """Append a line to each log."""
        for log in self._logs:
            try:
                log.append((json.dumps(lines[log.path.name], allow_nan=False) + "\n").encode())
            except OSError as error:
                raise self._lost(log.path, error) from error

    def save(self, round: int, server: Any, engine: Engine, best: int | None = None) -> None:
        """Write a checkpoint of this round, to which the logs reach. `best`: as in `Checkpoints.save`."""
        for log in self._logs:
            try:
                os.fsync(log.file.fileno())
            except OSError as error:
                raise self._lost(log.path, error) from error
        self.checkpoints.save(round, server, engine, {log.path.name: log.prefix for log in self._logs}, best)

    def manifest(self) -> Object:
        """Return manifest.json; see `reading.manifest`."""
        return reading.manifest(self.path)

    def settings(self) -> Object:
        """Return settings.json, of which the manifest of a run has the digest.

        Raises:
            DamageError: it is missing, or not what this run wrote.
            StorageError: the run is of another format, or the file cannot be read.
        """
        manifest = self.manifest() if self.begun else {"documents": {}}
        path = self.path / "settings.json"
        try:
            settings = parse(files.load(path), 2 * SETTINGS)  # with each default beside what was asked for
        except ValueError as error:
            raise DamageError(f"{path} is damaged: {error}") from None
        self.check_named(path.name, manifest["documents"])
        return settings

    def check_named(self, name: str, named: Mapping[str, Any]) -> None:
        """Raise DamageError if `named`, the documents of the manifest, has digests of a file and not its own."""
        if name in named:
            check_named(self.path / name, named[name])

    def initial(self, start: str) -> Path | None:
        """Return the file of the tensors with which the run's network begins, if it began with those of `start`.

        A run whose network has frozen parts keeps them. None: there is no such file.

        Raises:
            DamageError: it is not what the run wrote.
        """
        manifest, name = self.manifest(), initial_name(0)
        began = manifest.get("start", {}).get("file") == start and name in manifest["documents"]
        if not began or not files.exists(self.path / name):
            return None
        self.check_named(name, manifest["documents"])
        return self.path / name

    def checkpoint(self, round: int | None = None) -> Checkpoint:
        """Return the newest checkpoint, or the newest that is not after a round.

        Raises:
            DamageError: there is none, or it is damaged; says which others there are.
            StorageError: it cannot be read.
        """
        rounds = [t for t in self.checkpoints.rounds() if round is None or t <= round]
        if not rounds:
            raise DamageError(f"{self.path} has no checkpoint" + ("" if round is None else f" up to round {round}"))
        try:
            checkpoint = self.checkpoints.read(rounds[-1])
            after = list[Checkpoint]()
            with suppress(DamageError):  # the next one may be why somebody goes back to this one
                after += map(self.checkpoints.read, [t for t in self.checkpoints.rounds() if t > rounds[-1]][:1])
            if wrong := self.checkpoints.unchained([checkpoint, *after]):
                raise DamageError(wrong[rounds[-1]])
            self.checkpoints.verify(checkpoint)
        except DamageError as error:
            others = f"; the one before is of round {rounds[-2]}: resume from it with --at {rounds[-2]}" * (
                len(rounds) > 1
            )
            raise DamageError(f"the checkpoint of round {rounds[-1]} is damaged: {error}{others}") from None
        return checkpoint

    def compare(self, facts: Mapping[str, Any], *, branch: bool = False) -> None:
        """Raise SettingError if the run in this directory is another one than `facts` (`Coordinator.facts`) describe.

        Settings that its version did not know are at their defaults in it. `branch`: the algorithm may be another.

        Raises:
            DamageError: a document is not what the run wrote.
            StorageError: the run is of another format.
        """
        stored = self.manifest()
        for name in stored["documents"]:
            if files.exists(self.path / name) or name in ALONE:  # another decides nothing, and is written again
                self.check_named(name, stored["documents"])
                if _is_tensors(name):
                    _written[stored["documents"][name][-1]] = self.path / name
        self.checkpoints.identity = identity(stored)
        changes = [c for c in differences(completed(stored, facts), plain(facts)) if c[0] not in MAY_DIFFER]
        before, now = ([*of.get("models", ())] for of in (stored, facts))
        if before != now and sorted(before) == sorted(now):  # clients without a named network take them in turn
            changes.append(("models", before, now))
        for key, old, new in changes:
            if key.startswith("versions."):
                warn(
                    f"the run in {self.path} was started with {key.removeprefix('versions.')} {old}, this is {new}: "
                    "results may differ in the last bits",
                    SettingWarning,
                )
            if key.startswith("code.") and new is not None:
                warn(
                    f"{key.removeprefix('code.')}, code that the settings name, was changed since the run in "
                    f"{self.path} began, so its rounds may be computed otherwise from here on: bring "
                    "it back, or begin a new run if the change is meant (fedloom replay says whether a past round "
                    "still comes out the same)",
                    SettingWarning,
                )
        may_differ = BESIDE | (_OWN if branch else set())
        unfit = [c for c in changes if c[0].partition(".")[0] not in may_differ]
        if weights := [c for c in unfit if c[0].startswith("initial.")]:
            if len(weights) == len(unfit):  # else what else differs may be why
                raise self._other_weights(weights[0], stored)
            unfit = [c for c in unfit if c not in weights]
        if unfit:
            listed = (f"{key} was {json.dumps(old)} and is {json.dumps(new)}" for key, old, new in unfit)
            raise SettingError(
                f"{self.path} holds a run with other settings or data: {some_of(listed, 5, '; ')}. "
                "Use what it was started with, or another directory for a new run [FL-RUN-018]"
            )

    def _other_weights(self, change: tuple[str, Any, Any], stored: Mapping[str, Any]) -> SettingError:
        key, old, new = change
        file, kept = stored.get("start", {}).get("file"), initial_name(0)
        what = (
            "the module or the code that makes the network, on such a machine"
            if file is None
            else f"{file} as it was" + f", or move it away: {kept} here has it" * (kept in stored["documents"])
        )
        return SettingError(
            f"the run in {self.path} began with other weights of {key.removeprefix('initial.')}: their digest was "
            f"{old} and is {new}. Start from what it began with ({what}), or use another directory for a new run"
        )

    def branch(self, checkpoint: Checkpoint, path: Path, documents: Mapping[str, Any]) -> None:
        """Make the directory of a run that begins as this one did, up to a checkpoint; it is there whole or not at all.

        Raises:
            StorageError: it cannot be written.
            DamageError: a file of this run is damaged.
        """
        origin = {"run": self.checkpoints.identity.fingerprint, "round": checkpoint.round}
        files.make(path.parent)
        with tempfile.TemporaryDirectory(prefix=".branch-", dir=path.parent) as folder:
            with RunDirectory(Path(folder, "run")) as branch:
                branch._write(documents, {**documents["manifest"], "branch": origin})
                earlier = self.checkpoints.split_at(checkpoint)[0].values()
                for name in branch.logs:
                    files.write(branch.path, name, self.log(name, checkpoint, earlier)[1])
                branch.checkpoints.take_over(self.checkpoints, checkpoint)
            files.rename(branch.path, path)
        files.sync(path.parent)

    def resume_from(self, checkpoint: Checkpoint, history: History, engine: Engine) -> None:
        """Cut the logs back to a checkpoint, read them into `history`, and open them to append.

        Useful files are set aside. Only the rounds that a killed process left after the newest checkpoint, at most
        `checkpoint_every`, are cut without that: they are computed again.
        """
        records, starts, cut = dict[str, list[Record]](), dict[str, bytes](), False
        every = self.manifest()["run"]["checkpoint_every"]
        remaining, others = self.checkpoints.split_at(checkpoint)
        for name in self.logs:
            records[name], starts[name], tail = self.log(name, checkpoint, remaining.values())
            cut |= not left_by_a_kill(name, starts[name], tail, every, self.checkpoints.identity.entries)
        cut |= any(t > checkpoint.round for t in others)
        aside = files.Quarantine(self.path)
        for name in self.logs:
            if cut:
                aside.copy(self.path / name)
        self.checkpoints.resume_from(checkpoint, remaining, others, engine, aside)
        self._open(starts, "r+b")  # the logs last: as long as a later checkpoint is there, they must reach to it
        history.metrics[:], history.timing[:] = (records[name] for name in LOGS)
        history.per_client[:] = records.get(PER_CLIENT, [])
        aside.say(f"are of no use to a run that goes on from round {checkpoint.round}")

    def log(
        self, name: str, checkpoint: Checkpoint, earlier: Iterable[Checkpoint] = ()
    ) -> tuple[list[Record], bytes, bytes]:
        """Return the records of a log up to a checkpoint, their bytes, and what comes after; see `read_log`."""
        return read_log(self.path / name, checkpoint, earlier, self.checkpoints.identity.entries)

    def warn_unless_whole(self) -> None:
        """Warn of what `verify` finds wrong here, beside the checkpoint that is used."""
        warn_unless_whole(self.path, self.manifest())

    def _open(self, starts: Mapping[str, bytes], mode: str) -> None:
        try:
            self._logs = [Log(self.path / name, start, mode) for name, start in starts.items()]
        except OSError as error:
            raise StorageError(f"cannot write the logs in {self.path}: {error.strerror}") from error

    def _lost(self, path: Path, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write {path}: {error.strerror}; the run stands at its last checkpoint: make room and resume it"
        )


def initial_name(number: int) -> str:
    """Return the name of the file with which a network with frozen parts begins, by its place among the networks."""
    return f"initial-{number}{_TENSORS}"


def _digest(pieces: Sequence[bytes | memoryview]) -> str:
    running = files.RunningDigest()
    for piece in pieces:
        running.add(piece)
    return running.digest


def _is_tensors(name: str) -> bool:
    return name.endswith(_TENSORS)
