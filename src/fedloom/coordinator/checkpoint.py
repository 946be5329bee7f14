"""What a run needs to go on: written whole, proved when read, deleted when no kept checkpoint needs it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.coordinator import reading
from fedloom.core import files
from fedloom.core.codec import decode, encode
from fedloom.core.errors import CodecError, DamageError, StorageError
from fedloom.core.files import Aside, File
from fedloom.core.strict_json import LARGEST, parse
from fedloom.engines.engine import Engine
from fedloom.engines.store import state_name

FORMAT = 2
LOGS = ("metrics.jsonl", "timing.jsonl")  # of every run
PER_CLIENT = "clients.jsonl"  # where that is asked for
_INDEX = re.compile(r"([0-9]{8,})\.json")
_SERVER = re.compile(r"([0-9]{8,})-server\.safetensors")
_CLIENT = re.compile(r"[0-9]{8,}-([0-9]{8,})\.safetensors")  # the round that made it


class Prefix(NamedTuple):
    """The beginning of a log: its bytes and their digest, None in an index of format 1."""

    size: int
    digest: str | None


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round. `logs`: how each log began then."""

    round: int
    server: File
    clients: Mapping[int, File]
    logs: Mapping[str, Prefix]

    @property
    def proved(self) -> bool:
        """Whether its index is of a format that proves itself and the logs."""
        return all(prefix.digest is not None for prefix in self.logs.values())


@dataclass(frozen=True)
class Identity:
    """The run that checkpoints belong to.

    Attributes:
        fingerprint: Digest of what must stay the same for as long as the run lasts.
        clients: How many there are.
        rows: How many rows the server keeps of each, which have numbers after those of the clients; any number where
            it has pools.
        logs: Their names.
        unproved: Up to this round indexes may be of format 1.
    """

    fingerprint: str = ""
    clients: int = 0
    rows: int = 0
    logs: tuple[str, ...] = LOGS
    unproved: int = -1


class Checkpoints:
    """The checkpoints of a run, in a folder: `ROUND.json` names `ROUND-server.safetensors` and files in `clients/`.

    Client states are written first (one file per client and version), then the server's, then the index; each gets
    its name when it is whole. The index has the digests of all of them, of the beginnings of the logs, of the run and
    of itself. The first checkpoint, the newest two and those of every `keep_every`-th round are kept.
    """

    def __init__(self, folder: Path, keep_every: int = 10) -> None:
        self.folder, self.keep_every = folder, keep_every
        self.identity = Identity()
        self._kept: dict[int, Checkpoint] = {}

    @property
    def clients(self) -> Path:
        return self.folder / "clients"

    def index(self, round: int) -> Path:
        return self.folder / f"{round:08d}.json"

    def rounds(self) -> list[int]:
        """Rounds that have a checkpoint, in order.

        Raises:
            StorageError: the folder cannot be listed.
        """
        found = {int(m[1]): m[0] for m in map(_INDEX.fullmatch, files.names(self.folder)) if m}
        return sorted(t for t, name in found.items() if name == self.index(t).name)

    def save(self, round: int, server: Any, engine: Engine, logs: Mapping[str, Prefix]) -> None:
        """Write the checkpoint of a round, then delete what no kept one names.

        Raises:
            StorageError: the disk does not take it; the checkpoints before are still whole.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        clients = engine.save()
        saved = files.write(self.folder, _server(round), encode(server))
        checkpoint = Checkpoint(round, saved, clients, dict(logs))
        self._write_index(checkpoint)
        self._kept[round] = checkpoint
        engine.durable = round
        self._prune(engine)

    def take_over(self, other: Checkpoints, checkpoint: Checkpoint) -> None:
        """Write a checkpoint of another run, of which its files are copied, as the first of this one."""
        self.clients.mkdir(parents=True)
        files.write(self.folder, checkpoint.server.name, files.read(other.folder, checkpoint.server))
        for file in checkpoint.clients.values():
            files.write(self.clients, file.name, files.read(other.clients, file))
        files.sync(self.clients)
        self._write_index(checkpoint)

    def _write_index(self, checkpoint: Checkpoint) -> None:
        index = {
            "format": FORMAT, "run": self.identity.fingerprint, "round": checkpoint.round, "server": checkpoint.server,
            "clients": {str(k): f for k, f in checkpoint.clients.items()}, "logs": checkpoint.logs,
        }  # fmt: skip
        files.write(self.folder, self.index(checkpoint.round).name, reading.sealed(index))
        files.sync(self.folder)

    def read(self, round: int) -> Checkpoint:
        """The checkpoint of a round.

        Raises:
            DamageError: there is none, or its index is not what this run wrote.
            StorageError: it cannot be read.
        """
        path = self.index(round)
        data = files.load(path)
        try:
            return self._checked(round, data)
        except ValueError as error:
            raise DamageError(f"{path} is not a checkpoint of this run, or was damaged or changed: {error}") from None

    def _checked(self, round: int, data: bytes) -> Checkpoint:
        raw = parse(data, LARGEST)
        old = raw.get("format") == 1 and round <= self.identity.unproved
        if not old:
            if raw.get("format") != FORMAT:
                raise ValueError(f"format must be {FORMAT}, got {raw.get('format')}")
            raw = reading.unsealed(data)
            if raw.get("run") != self.identity.fingerprint:
                raise ValueError("it belongs to another run")
        if raw.get("round") != round:
            raise ValueError(f"it is of round {raw.get('round')}")
        clients, logs = raw.get("clients"), raw.get("logs")
        if not isinstance(clients, dict) or not isinstance(logs, dict) or set(logs) != set(self.identity.logs):
            raise ValueError("clients and logs must be mappings")
        return Checkpoint(
            round=round,
            server=_file(raw.get("server"), _server(round)),
            clients={int(k): self._client(k, file, round) for k, file in clients.items()},
            logs={name: _prefix([of, None] if old else of) for name, of in logs.items()},
        )

    def _client(self, key: str, raw: Any, round: int) -> File:
        most = self.identity.clients * (1 + self.identity.rows)  # `Keys.first_entry`
        if not key.isdecimal() or str(int(key)) != key or int(key) >= most:
            raise ValueError(f"client must be in 0..{most - 1}, got {key!r}")
        file = _file(raw)
        match = _CLIENT.fullmatch(file.name)
        if not match or int(match[1]) > round or file.name != state_name(int(key), int(match[1])):
            raise ValueError(f"{file.name!r} is no state of client {key} up to round {round}")
        return file

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

    def states(self, checkpoint: Checkpoint) -> dict[Path, File]:
        """All states that a checkpoint names."""
        clients = {self.clients / file.name: file for file in checkpoint.clients.values()}
        return {self.folder / checkpoint.server.name: checkpoint.server, **clients}

    def verify(self, checkpoint: Checkpoint) -> None:
        """Raise DamageError if a state is missing or damaged, StorageError if it cannot be read."""
        for path, file in self.states(checkpoint).items():
            files.read(path.parent, file)

    def unnamed(self, checkpoints: Iterable[Checkpoint]) -> list[tuple[Path, int]]:
        """Files of states that none of some checkpoints names, each with the round that made it.

        Files that have other names than a run gives are nobody's business.
        """
        named = {name for c in checkpoints for name in (c.server.name, *(f.name for f in c.clients.values()))}
        return [
            (path, int(match[1]))
            for path, pattern in self._ours()
            if (match := pattern.fullmatch(path.name)) and path.name not in named
        ]

    def unfinished(self) -> list[Path]:
        """Files that a killed process was writing."""
        return [p for p, pattern in self._ours(".part") if any(r.fullmatch(p.stem) for r in (_INDEX, pattern))]

    def _ours(self, suffix: str = "") -> Iterator[tuple[Path, re.Pattern[str]]]:
        """Files with such an ending, and how a state in their folder is called."""
        for folder, pattern in ((self.folder, _SERVER), (self.clients, _CLIENT)):
            yield from ((folder / name, pattern) for name in files.names(folder) if name.endswith(suffix))

    def standing(self, checkpoint: Checkpoint) -> tuple[dict[int, Checkpoint], list[int]]:
        """What stays where a run goes on from a checkpoint, and the rounds of all other indexes, newest first.

        Raises:
            StorageError: an index cannot be read: it may be whole.
        """
        kept, others = dict[int, Checkpoint](), [t for t in reversed(self.rounds()) if t > checkpoint.round]
        for round in reversed(self.rounds()):
            if round <= checkpoint.round:
                try:
                    kept[round] = self.read(round)
                except DamageError:
                    others.append(round)
        return kept, others

    def go_on_from(
        self, checkpoint: Checkpoint, kept: dict[int, Checkpoint], others: list[int], engine: Engine, aside: Aside
    ) -> None:
        """Make a checkpoint the newest; `kept` and `others` as of `standing`.

        Files that nothing kept names go aside. Deleted are those of a checkpoint that was being deleted; and, where
        nothing went aside, what a killed process made of the rounds after it: they are computed again.
        """
        meant = {path for round in others for path in self._meant(round)}
        for round in others:  # the index first: what it names must be whole as long as it is there
            aside.move(self.index(round))
        going = {file for c in self.going(checkpoint.round) for file in self.states(c)}
        for path, round in self.unnamed(kept.values()):
            if path in going or (round > checkpoint.round and not aside.count):
                files.remove(path)
            else:
                aside.move(path)
        for path in meant:  # what a kept index names too is deleted with that one
            if path.exists():
                aside.share(path)
        for path in self.unfinished():
            files.remove(path)
        self._kept = kept
        engine.spare(f.name for c in kept.values() for f in c.clients.values())

    def _meant(self, round: int) -> set[Path]:
        """What an index names; a damaged one may have named the newest state of each client by then."""
        with suppress(DamageError):
            return set(self.states(self.read(round)))
        found = {self.folder / _server(round)}
        by_client: dict[str, Path] = {}
        for name in sorted(files.names(self.clients)):
            if (match := _CLIENT.fullmatch(name)) and int(match[1]) <= round:
                by_client[name.partition("-")[0]] = self.clients / name
        return found | set(by_client.values())

    def going(self, newest: int) -> Iterator[Checkpoint]:
        """Checkpoints before the newest that a killed process was deleting."""
        for path in self.unfinished():
            match = _INDEX.fullmatch(path.stem)
            if match and int(match[1]) < newest:
                with suppress(ValueError):
                    yield self._checked(int(match[1]), files.load(path))

    def _prune(self, engine: Engine) -> None:
        newest = sorted(self._kept)[-2:]
        first = min(self._kept)  # of a branch, before which nothing can be computed again
        dropped = [self._kept.pop(t) for t in list(self._kept) if t not in (first, *newest) and t % self.keep_every]
        named = {f.name for c in self._kept.values() for f in c.clients.values()}
        engine.spare(named)
        for checkpoint in dropped:
            index = self.index(checkpoint.round)
            part = index.with_name(f"{index.name}.part")  # first: what an index names is whole as long as it is there
            files.rename(index, part)
            files.remove(self.folder / checkpoint.server.name)
            for name in {f.name for f in checkpoint.clients.values()} - named:
                files.remove(self.clients / name)
            files.remove(part)


def _server(round: int) -> str:
    return f"{round:08d}-server.safetensors"


def _file(raw: Any, name: str | None = None) -> File:
    if not (isinstance(raw, list) and len(raw) == 2 and all(isinstance(part, str) for part in raw)):
        raise ValueError(f"{raw!r} is no file of a checkpoint")
    if name is not None and raw[0] != name:
        raise ValueError(f"{raw[0]!r} stands where {name!r} must")
    return File(*raw)


def _prefix(raw: Any) -> Prefix:
    size, digest = raw if isinstance(raw, list) and len(raw) == 2 else (None, None)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(digest, str | None):
        raise ValueError(f"{raw!r} is no length and digest of a log")
    return Prefix(size, digest)
