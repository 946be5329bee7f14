"""Checkpoints: all that a run needs to go on; written whole, proved when read, deleted when none needs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.record_entries import Entries, entries_of
from fedloom.coordinator.run_documents import FORMAT
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import CodecError, DamageError, StorageError
from fedloom.core.setting import may_differ
from fedloom.engines.engine import Engine
from fedloom.engines.upload_bounds import Kept, Norms
from fedloom.storage import files
from fedloom.storage.codec import decode, encode
from fedloom.storage.files import File, Quarantine
from fedloom.storage.store import state_name
from fedloom.storage.strict_json import short

LOGS = ("metrics.jsonl", "timing.jsonl")  # of every run
PER_CLIENT = "clients.jsonl"  # where that is asked for
MAY_DIFFER = {f"run.{name}" for name in may_differ(RunSettings, "resumed")}
# of a manifest, what does not make a run; `chained` is written no longer
BESIDE = {
    *("format", "versions", "engine_reason", "documents", "chained", "shared", "branch", "start"),
    *("front", "code", "chance", "columns"),
}
_ANY = 1 << 62
_INDEX = re.compile(r"([0-9]{8,})\.json")
_SERVER = re.compile(r"([0-9]{8,})-server\.safetensors")
_CLIENT = re.compile(r"[0-9]{8,}-([0-9]{8,})\.safetensors")  # the round that made it


class Prefix(NamedTuple):
    """The beginning of a log: its bytes and their digest."""

    size: int
    digest: str


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round. `logs`: how each log began then. `before`: indexes that it was written after.

    `digest`: of its own index. `norms`: of uploads, by which later ones are bounded.
    """

    round: int
    server: File
    clients: Mapping[int, File]
    logs: Mapping[str, Prefix]
    before: tuple[File, ...] = ()
    digest: str = ""
    norms: Kept = field(default_factory=dict)


@dataclass(frozen=True)
class Identity:
    """The run that checkpoints belong to.

    Attributes:
        fingerprint: Digest of what must stay the same for as long as the run lasts.
        clients: How many there are.
        rows: How many rows the server keeps of each, which have numbers after those of the clients; any number where
            it has pools, or clients are devices, of whom more may come.
        logs: Their names.
        entries: The types of what records hold.
    """

    fingerprint: str = ""
    clients: int = 0
    rows: int = 0
    logs: tuple[str, ...] = LOGS
    entries: Entries = field(default_factory=Entries)


def identity(manifest: Mapping[str, Any]) -> Identity:
    """Return the identity of the run that a manifest describes: what must stay the same for as long as it lasts."""
    lasting = {name: value for name, value in manifest.items() if name not in BESIDE}
    lasting["run"] = {name: value for name, value in manifest["run"].items() if f"run.{name}" not in MAY_DIFFER}
    fixed = manifest.get("fixed", {})
    return Identity(
        fingerprint=files.digest(json.dumps(lasting, sort_keys=True).encode()),
        clients=manifest["federation"]["clients"],
        logs=(*LOGS, PER_CLIENT) if manifest["run"].get("per_client") else LOGS,
        rows=_ANY if fixed.get("pools") or "devices" in manifest["federation"] else len(fixed.get("rows", ())),
        entries=entries_of(manifest),
    )


class Checkpoints:
    """The checkpoints of a run, in a folder: `ROUND.json` names `ROUND-server.safetensors` and files in `clients/`.

    Client states are written first (one file per client and version), then the server's, then the index; each gets
    its name when it is whole. The index has the digests of all of them, of the beginnings of the logs, of the run, of
    indexes before it and of itself. The first checkpoint, the newest two, those of every `keep_every`-th round and the
    best so far are kept. An index names the newest before it, the newest of those that stay, and the best, so that each
    that stands is named by the next one that stands, whatever was deleted between them.
    """

    def __init__(self, folder: Path, keep_every: int = 10) -> None:
        self.folder, self.keep_every = folder, keep_every
        self.identity = Identity()
        self._by_round: dict[int, Checkpoint] = {}

    @property
    def clients(self) -> Path:
        return self.folder / "clients"

    def index(self, round: int) -> Path:
        return self.folder / f"{round:08d}.json"

    def rounds(self) -> list[int]:
        """Return the rounds that have a checkpoint, in order.

        Raises:
            StorageError: the folder cannot be listed.
        """
        found = {int(m[1]): m[0] for m in map(_INDEX.fullmatch, files.names(self.folder)) if m}
        return sorted(t for t, name in found.items() if name == self.index(t).name)

    def save(
        self, round: int, server: Any, engine: Engine, logs: Mapping[str, Prefix], best: int | None = None
    ) -> None:
        """Write the checkpoint of a round, then delete what no kept one names.

        `best`: the round whose checkpoint is kept as the best so far; None: none is.

        Raises:
            StorageError: the disk does not take it; the checkpoints before are still whole.
        """
        files.make(self.folder)
        clients = engine.save()
        saved = files.write(self.folder, _server(round), encode(server))
        checkpoint = Checkpoint(round, saved, clients, dict(logs), self._before(best), norms=engine.norms.saved())
        self._by_round[round] = self._write_index(checkpoint)
        engine.durable = round
        self._prune(engine, best)

    def take_over(self, other: Checkpoints, checkpoint: Checkpoint) -> None:
        """Write a checkpoint of another run as the first of this one; its files are copied."""
        files.make(self.clients)
        files.write(self.folder, checkpoint.server.name, files.read(other.folder, checkpoint.server))
        for file in checkpoint.clients.values():
            files.write(self.clients, file.name, files.read(other.clients, file))
        files.sync(self.clients)
        self._write_index(replace(checkpoint, before=()))

    def _before(self, best: int | None) -> tuple[File, ...]:
        """Return the indexes that the next one names.

        These are the newest, the newest of those that will not be deleted, and the best, which a better one replaces.
        """
        rounds = sorted(self._by_round)
        named = {*rounds[-1:], *[t for t in rounds if self._stays(t)][-1:], *[t for t in rounds if t == best]}
        return tuple(File(self.index(t).name, self._by_round[t].digest) for t in sorted(named))

    def _write_index(self, checkpoint: Checkpoint) -> Checkpoint:
        index = {
            "format": FORMAT, "run": self.identity.fingerprint, "round": checkpoint.round, "server": checkpoint.server,
            "before": checkpoint.before, "clients": {str(k): f for k, f in checkpoint.clients.items()},
            "logs": checkpoint.logs,
            **({"norms": checkpoint.norms} if checkpoint.norms else {}),
        }  # fmt: skip
        written = files.write(self.folder, self.index(checkpoint.round).name, reading.sealed(index))
        files.sync(self.folder)
        return replace(checkpoint, digest=written.digest)

    def read(self, round: int) -> Checkpoint:
        """Return the checkpoint of a round.

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
        raw = reading.unsealed(data)
        if raw.get("format") != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {raw.get('format')}")
        if raw.get("run") != self.identity.fingerprint:
            raise ValueError("it belongs to another run")
        if raw.get("round") != round:
            raise ValueError(f"it is of round {raw.get('round')}")
        clients, logs = raw.get("clients"), raw.get("logs")
        if not isinstance(clients, dict) or not isinstance(logs, dict) or set(logs) != set(self.identity.logs):
            raise ValueError("clients and logs must be mappings")
        before = raw.get("before")
        if not isinstance(before, list):
            raise ValueError(f"before must be a list of indexes, got {short(before)}")
        return Checkpoint(
            round=round,
            server=_file(raw.get("server"), _server(round)),
            clients={int(k): self._client(k, file, round) for k, file in clients.items()},
            logs={name: _prefix(of) for name, of in logs.items()},
            before=tuple(self._index_before(round, file) for file in before),
            digest=files.digest(data),
            norms=Norms.read(raw.get("norms", {})).saved(),
        )

    def _index_before(self, round: int, raw: Any) -> File:
        file = _file(raw)
        match = _INDEX.fullmatch(file.name)
        if not match or int(match[1]) >= round or file.name != self.index(int(match[1])).name:
            raise ValueError(f"{file.name!r} is no index of a round before {round}")
        return file

    def unchained(self, checkpoints: Sequence[Checkpoint]) -> dict[int, str]:
        """Return which of some checkpoints, in order, are not what those after them name, by round, and why not."""
        named, wrong = dict[str, tuple[str, str]](), dict[int, str]()
        for checkpoint in reversed(checkpoints):
            path = self.index(checkpoint.round)
            digest, by = named.get(path.name, (checkpoint.digest, ""))
            if digest != checkpoint.digest:  # of what it names itself nothing is known
                wrong[checkpoint.round] = f"{path} is not the index after which {by} was written: it was changed since"
                continue
            for file in checkpoint.before:
                named.setdefault(file.name, (file.digest, path.name))
        return wrong

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
        """Return the server state of a checkpoint. `like`: one of the same structure.

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
        """Return all states that a checkpoint names, by their paths."""
        clients = {self.clients / file.name: file for file in checkpoint.clients.values()}
        return {self.folder / checkpoint.server.name: checkpoint.server, **clients}

    def verify(self, checkpoint: Checkpoint) -> None:
        """Raise DamageError if a state is missing, damaged or not the newest, StorageError if it cannot be read."""
        for path, file in self.states(checkpoint).items():
            files.read(path.parent, file)
        self.check_newest(checkpoint)

    def check_newest(self, checkpoint: Checkpoint) -> None:
        """Raise DamageError if there is a later state of a client than a checkpoint names, made before it."""
        for client, name in self._newest(checkpoint.round).items():
            named = checkpoint.clients.get(client)
            if named is None or named.name < name:  # an index that was changed and sealed anew
                raise DamageError(
                    f"{self.clients / name} is a later state of client {client} than its index names: that was changed"
                )

    def _newest(self, round: int) -> dict[int, str]:
        """Return the file of each client's newest state that a round up to this one made."""
        matches = [match for match in map(_CLIENT.fullmatch, sorted(files.names(self.clients))) if match]
        return {int(match[0].partition("-")[0]): match[0] for match in matches if int(match[1]) <= round}

    def unnamed(self, checkpoints: Iterable[Checkpoint]) -> list[tuple[Path, int]]:
        """Return the files of states that none of some checkpoints names, each with the round that made it.

        Files that have other names than a run gives are left out.
        """
        named = {name for c in checkpoints for name in (c.server.name, *(f.name for f in c.clients.values()))}
        return [
            (path, int(match[1]))
            for path, pattern in self._ours()
            if (match := pattern.fullmatch(path.name)) and path.name not in named
        ]

    def unfinished(self) -> list[Path]:
        """Return the files that a killed process was writing."""
        return [p for p, pattern in self._ours(".part") if any(r.fullmatch(p.stem) for r in (_INDEX, pattern))]

    def _ours(self, suffix: str = "") -> Iterator[tuple[Path, re.Pattern[str]]]:
        """Yield the files whose names end with `suffix`, each with the pattern of a state's name in its folder."""
        for folder, pattern in ((self.folder, _SERVER), (self.clients, _CLIENT)):
            yield from ((folder / name, pattern) for name in files.names(folder) if name.endswith(suffix))

    def split_at(self, checkpoint: Checkpoint) -> tuple[dict[int, Checkpoint], list[int]]:
        """Return the checkpoints that remain where a run resumes from one, and the rounds of all others, newest first.

        Raises:
            StorageError: an index cannot be read: it may be whole.
        """
        rounds, readable = self.rounds(), list[Checkpoint]()
        for round in rounds:
            with suppress(DamageError):
                if round <= checkpoint.round:
                    readable.append(self.read(round))
        wrong = self.unchained(readable)
        remaining = {c.round: c for c in readable if c.round not in wrong}
        return remaining, [t for t in reversed(rounds) if t not in remaining]

    def resume_from(
        self,
        checkpoint: Checkpoint,
        remaining: dict[int, Checkpoint],
        others: list[int],
        engine: Engine,
        aside: Quarantine,
    ) -> None:
        """Make a checkpoint the newest; `remaining` and `others` are as `split_at` returns them.

        Files that no remaining one names go aside. Deleted are those of a checkpoint that was being deleted; and, where
        nothing went aside, what a killed process made of the rounds after it: they are computed again.
        """
        shared = {path for round in others for path in self._files_of(round)}
        for round in others:  # the index first: what it names must be whole as long as it is there
            aside.move(self.index(round))
        going = {file for c in self.going(checkpoint.round) for file in self.states(c)}
        for path, round in self.unnamed(remaining.values()):
            if path in going or (round > checkpoint.round and not aside.count):
                files.remove_or_move(path, aside)
            else:
                aside.move(path)
        for path in shared:  # what a remaining index names too is deleted with that one
            if path.exists():
                aside.share(path)
        for path in self.unfinished():
            files.remove_or_move(path, aside)
        self._by_round = remaining
        engine.spare(f.name for c in remaining.values() for f in c.clients.values())

    def _files_of(self, round: int) -> set[Path]:
        """Return what an index names, or named before it was damaged or changed: each client's newest state by then."""
        paths = {self.folder / _server(round), *(self.clients / name for name in self._newest(round).values())}
        with suppress(DamageError):
            paths |= set(self.states(self.read(round)))
        return paths

    def going(self, newest: int) -> Iterator[Checkpoint]:
        """Yield the checkpoints before the newest that a killed process was deleting."""
        for path in self.unfinished():
            match = _INDEX.fullmatch(path.stem)
            if match and int(match[1]) < newest:
                with suppress(ValueError, DamageError):  # which may be deleted by now
                    yield self._checked(int(match[1]), files.load(path))

    def _stays(self, round: int) -> bool:
        """Return whether a checkpoint is never deleted: the first, or one of every `keep_every`-th round.

        Before the first of a branch nothing can be computed again.
        """
        return round == min(self._by_round) or round % self.keep_every == 0

    def _prune(self, engine: Engine, best: int | None) -> None:
        spared = {*sorted(self._by_round)[-2:], best}
        dropped = [self._by_round.pop(t) for t in list(self._by_round) if t not in spared and not self._stays(t)]
        named = {f.name for c in self._by_round.values() for f in c.clients.values()}
        aside = Quarantine(self.folder.parent)
        engine.spare(named)
        for checkpoint in dropped:
            index = self.index(checkpoint.round)
            part = index.with_name(f"{index.name}.part")  # first: what an index names is whole as long as it is there
            files.rename(index, part)
            files.remove_or_move(self.folder / checkpoint.server.name, aside)
            for name in {f.name for f in checkpoint.clients.values()} - named:
                files.remove_or_move(self.clients / name, aside)
            files.remove(part)
        aside.say("are folders in the place of old states")


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
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(digest, str):
        raise ValueError(f"{raw!r} is no length and digest of a log")
    return Prefix(size, digest)
