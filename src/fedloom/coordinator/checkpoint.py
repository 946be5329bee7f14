"""What a run needs to go on: written whole, found again, deleted when no kept checkpoint needs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.core import files
from fedloom.core.codec import decode, encode
from fedloom.core.errors import CodecError, StorageError
from fedloom.core.files import File
from fedloom.engines.store import ClientStore

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round. `logs`: the length in bytes that each log file had then."""

    round: int
    server: File
    clients: Mapping[int, File]
    logs: Mapping[str, int]


class Checkpoints:
    """The checkpoints of a run, in a folder: `ROUND.json` names `ROUND-server.safetensors` and files in `clients/`.

    Client states are written first (one file per client and version), then the server's, then the manifest; each gets
    its name when it is whole. The newest two checkpoints and those of every `keep_every`-th round are kept.
    """

    def __init__(self, folder: Path, keep_every: int = 10) -> None:
        self.folder, self.keep_every = folder, keep_every
        self._kept: dict[int, Checkpoint] = {}

    @property
    def clients(self) -> Path:
        return self.folder / "clients"

    def rounds(self) -> list[int]:
        """Rounds that have a checkpoint, in order."""
        return sorted(int(p.stem) for p in self.folder.glob("*.json") if p.stem.isdecimal())

    def save(self, round: int, server: Any, states: ClientStore, logs: Mapping[str, int]) -> None:
        """Write the checkpoint of a round, then delete what no kept one names.

        Raises:
            StorageError: the disk does not take it; the checkpoints before are still whole.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        clients = states.save()
        saved = files.write(self.folder, f"{round:08d}-server.safetensors", encode(server))
        checkpoint = Checkpoint(round, saved, clients, dict(logs))
        manifest = {
            "format": FORMAT, "round": round, "server": saved, "clients": {str(k): f for k, f in clients.items()},
            "logs": checkpoint.logs,
        }  # fmt: skip
        files.write(self.folder, f"{round:08d}.json", json.dumps(manifest).encode())
        files.sync(self.folder)
        self._kept[round] = checkpoint
        self._prune(states)

    def read(self, round: int) -> Checkpoint:
        """The checkpoint of a round.

        Raises:
            StorageError: there is none, or it is damaged.
        """
        path = self.folder / f"{round:08d}.json"
        try:
            raw = json.loads(path.read_bytes())
            if raw["format"] != FORMAT or raw["round"] != round:
                raise ValueError(f"format {raw['format']}, round {raw['round']}")
            return Checkpoint(
                round=round,
                server=_file(raw["server"]),
                clients={int(k): _file(f) for k, f in raw["clients"].items()},
                logs={str(name): int(size) for name, size in raw["logs"].items()},
            )
        except OSError as error:
            raise StorageError(f"there is no checkpoint of round {round} to read: {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StorageError(f"{path} is not a checkpoint, damaged or changed: {error}") from None

    def server(self, checkpoint: Checkpoint, like: Any) -> Any:
        """The server state of a checkpoint. `like`: one of the same structure.

        Raises:
            StorageError: the file is damaged, or holds a state of another structure.
        """
        try:
            return decode(files.read(self.folder, checkpoint.server), like)
        except CodecError as error:
            raise StorageError(
                f"{self.folder / checkpoint.server.name} does not fit this algorithm and model: {error}"
            ) from None

    def verify(self, checkpoint: Checkpoint) -> None:
        """Raise StorageError if a client's state is missing or damaged."""
        for file in checkpoint.clients.values():
            files.read(self.clients, file)

    def go_on_from(self, checkpoint: Checkpoint, states: ClientStore) -> None:
        """Make a checkpoint the newest: drop later ones, and what a killed process left half done."""
        for round in [t for t in self.rounds() if t > checkpoint.round]:
            self._delete(round)
        for round in self.rounds():
            with suppress(StorageError):  # an older one that is damaged is of no use, and in nobody's way
                self._kept[round] = self.read(round)
        self._prune(states)
        for path in (*self.clients.glob("*"), *self.folder.glob("*.part"), *self.folder.glob("*-server.safetensors")):
            if path.name not in states.named and path.name not in {c.server.name for c in self._kept.values()}:
                path.unlink(missing_ok=True)

    def _prune(self, states: ClientStore) -> None:
        newest = sorted(self._kept)[-2:]
        dropped = [t for t in self._kept if t not in newest and t % self.keep_every]
        gone = {f.name for t in dropped for f in self._kept[t].clients.values()}
        for round in dropped:
            self._delete(round)
        states.named = {f.name for c in self._kept.values() for f in c.clients.values()}
        for name in gone - states.named:
            (self.clients / name).unlink(missing_ok=True)

    def _delete(self, round: int) -> None:
        self._kept.pop(round, None)
        for name in (f"{round:08d}.json", f"{round:08d}-server.safetensors"):  # the manifest first
            (self.folder / name).unlink(missing_ok=True)


def _file(raw: Any) -> File:
    name, digest = raw
    if not (isinstance(name, str) and isinstance(digest, str)) or "/" in name or "\\" in name or name.startswith("."):
        raise ValueError(f"{name!r} is no file of a checkpoint")
    return File(name, digest)
