"""The directory of a run: how it was asked for, its facts, its logs and checkpoints."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fedloom.coordinator.checkpoint import Checkpoint, Checkpoints
from fedloom.coordinator.history import History, Record
from fedloom.core import files
from fedloom.core.errors import SettingError, SettingWarning, StorageError
from fedloom.engines.store import ClientStore

LOGS = ("metrics.jsonl", "timing.jsonl")
_MAY_DIFFER = {
    f"run.{name}"
    for name in ("rounds", "target", "patience", "monitor", "checkpoint_every", "keep_every", "state_memory_mib")
}


def check_free(directory: str | os.PathLike[str]) -> None:
    """Raise SettingError if a directory holds a run already, or is no directory."""
    if Path(directory).exists() and not Path(directory).is_dir():
        raise SettingError(f"{directory} is a file; name a directory, new or without a run")
    if any((Path(directory) / name).exists() for name in ("metrics.jsonl", "manifest.json")):
        raise SettingError(
            f"{directory} already holds a run; continue it (resume), choose another directory, or move it away"
        )
    if below := sorted(path.parent.name for path in Path(directory).glob("*/manifest.json")):
        raise SettingError(
            f"{directory} holds several runs ({', '.join(below[:3])}{', ...' * (len(below) > 3)}), and one beside them "
            "would be lost among these; choose another directory, or go on with one of them"
        )


class RunDirectory:
    """Files of one run; see `docs/runs.md` for the layout. Only one process at a time may write in it."""

    def __init__(self, path: str | os.PathLike[str], keep_every: int = 10) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints", keep_every)
        self._logs: dict[str, IO[bytes]] = {}
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> RunDirectory:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("wb")
        except OSError as error:
            raise StorageError(f"cannot write in {self.path}: {error.strerror}; name another directory") from error
        with suppress(ImportError):  # on Windows nothing guards against two processes
            import fcntl

            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._lock.close()
                raise SettingError(f"{self.path} is being written by another process; wait for it or stop it") from None
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._logs.values():
            with suppress(OSError):  # what a full disk did not take has been reported
                file.close()
        if self._lock is not None:
            self._lock.close()

    def begin(self, documents: Mapping[str, Any]) -> None:
        """Write `documents` (name -> what is in NAME.json) and open empty logs."""
        for name, content in documents.items():
            files.write(self.path, f"{name}.json", (json.dumps(content, indent=2) + "\n").encode())
        self._open("wb")

    def update(self, documents: Mapping[str, Any]) -> None:
        """Write down settings that may differ when a run goes on, such as its number of rounds."""
        stored = {name: self.document(name) for name in documents}
        manifest = {**stored["manifest"], "run": documents["manifest"]["run"]}
        for name, content in {**documents, "manifest": manifest}.items():
            if content != stored[name]:
                files.write(self.path, f"{name}.json", (json.dumps(content, indent=2) + "\n").encode())

    def record(self, metrics: Record, timing: Record) -> None:
        """Append a line to each log."""
        for file, line in zip(self._logs.values(), (metrics, timing), strict=True):
            try:
                file.write((json.dumps(line, allow_nan=False) + "\n").encode())
                file.flush()
            except OSError as error:
                raise self._lost(file.name, error) from error

    def save(self, round: int, server: Any, states: ClientStore) -> None:
        """Write a checkpoint of this round, to which the logs reach."""
        for file in self._logs.values():
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise self._lost(file.name, error) from error
        self.checkpoints.save(round, server, states, {name: f.tell() for name, f in self._logs.items()})

    def document(self, name: str) -> dict[str, Any]:
        """What is in NAME.json.

        Raises:
            StorageError: it is missing or is not what a run writes.
        """
        path = self.path / f"{name}.json"
        try:
            found = json.loads(path.read_bytes())
        except OSError as error:
            raise StorageError(f"{self.path} holds no run that can be read: {path.name}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise StorageError(f"{path} is damaged: {error}") from None
        if not isinstance(found, dict):
            raise StorageError(f"{path} is damaged: it must hold an object, got {type(found).__name__}")
        return found

    def checkpoint(self, round: int | None = None) -> Checkpoint:
        """The newest checkpoint, or the newest that is not after a round.

        Raises:
            StorageError: there is none, or it is damaged; says which others there are.
        """
        rounds = [t for t in self.checkpoints.rounds() if round is None or t <= round]
        if not rounds:
            raise StorageError(f"{self.path} has no checkpoint" + ("" if round is None else f" up to round {round}"))
        try:
            found = self.checkpoints.read(rounds[-1])
            files.read(self.checkpoints.folder, found.server)
            self.checkpoints.verify(found)
        except StorageError as error:
            others = f"; the one before is of round {rounds[-2]}: resume from it with --at {rounds[-2]}" * (
                len(rounds) > 1
            )
            raise StorageError(f"the checkpoint of round {rounds[-1]} is damaged: {error}{others}") from None
        return found

    def compare(self, facts: Mapping[str, Any]) -> None:
        """Raise SettingError if the run in this directory is another one than `facts` describe."""
        stored = self.document("manifest")
        changes = [c for c in _differences(stored, facts) if c[0] not in _MAY_DIFFER]
        for key, old, new in changes:
            if key.startswith("versions."):
                warnings.warn(
                    f"the run in {self.path} was started with {key.removeprefix('versions.')} {old}, this is {new}: "
                    "results may differ in the last bits",
                    SettingWarning,
                    stacklevel=2,
                )
        unfit = [c for c in changes if not c[0].startswith(("versions.", "engine_reason"))]
        if unfit:
            listing = "; ".join(f"{key} was {json.dumps(old)} and is {json.dumps(new)}" for key, old, new in unfit[:5])
            more = f"; and {len(unfit) - 5} more" if len(unfit) > 5 else ""
            raise SettingError(
                f"{self.path} holds a run with other settings or data: {listing}{more}. "
                "Use what it was started with, or another directory for a new run"
            )

    def go_on_from(self, checkpoint: Checkpoint, history: History, states: ClientStore) -> None:
        """Cut the logs back to a checkpoint, read them into `history`, and open them to append."""
        found: dict[str, list[Record]] = {}
        for name in LOGS:
            path, size = self.path / name, checkpoint.logs.get(name, 0)
            try:
                data = path.read_bytes()[:size]
            except OSError as error:
                raise StorageError(f"cannot read {path}: {error.strerror}") from None
            lines: list[Record] = []
            for line in data.splitlines():
                try:
                    lines.append(json.loads(line))
                except (ValueError, RecursionError) as error:
                    raise StorageError(
                        f"{path}, line {len(lines) + 1}, is damaged: {error}; the checkpoints are untouched: bring "
                        "the log back, or export the model"
                    ) from None
            if len(data) < size or [r.get("round") for r in lines] != list(range(checkpoint.round + 1)):
                raise StorageError(
                    f"{path} must hold rounds 0 to {checkpoint.round} in its first {size:,} bytes, but does not: "
                    "it was cut or changed; the checkpoints are untouched"
                )
            found[name] = lines
        history.metrics[:], history.timing[:] = found[LOGS[0]], found[LOGS[1]]
        self._open("r+b")
        for name, file in self._logs.items():
            file.seek(checkpoint.logs[name])
            file.truncate()
        self.checkpoints.go_on_from(checkpoint, states)

    def _open(self, mode: str) -> None:
        try:
            self._logs = {name: (self.path / name).open(mode) for name in LOGS}
        except OSError as error:
            raise StorageError(f"cannot write the logs in {self.path}: {error.strerror}") from error

    def _lost(self, name: Any, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write {name}: {error.strerror}; the run stands at its last checkpoint: make room and resume it"
        )


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else str(name))
    elif old != new:
        yield key, old, new
