"""Store of simulated clients' states between rounds: in memory, and on disk beyond a budget."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.errors import CodecError, StorageError
from fedloom.core.types import Tree
from fedloom.storage import files
from fedloom.storage.codec import decode, encode
from fedloom.storage.files import File

Version = tuple[int, int]  # round and exchange in which a state came about
Flat = tuple[list[Tensor], Any]  # tensors, and the structure that they fill


class ClientStore(MutableMapping[int, Tree]):
    """Map clients to states. It holds flat tensors, so that a cohort is stacked and unstacked without walking K trees.

    `budget`: bytes of states in memory. Beyond it the least recently used are in files of `folder` (default: a
    temporary one), read on demand. None: all states stay in memory. `version`: the number of the round that ends. It
    is a part of file names, so that states of older rounds stay readable.
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        self.budget, self.version = budget, 0
        self.protected: set[str] = set()  # files that checkpoints name, which are not deleted here
        self._folder = folder
        self._in_memory: OrderedDict[int, Flat] = OrderedDict()  # in the order of their last use
        self._bytes = self._freed = 0
        self._files: dict[int, File] = {}  # where the newest state of a client is written
        self._unsaved: set[int] = set()  # clients whose newest state is in memory alone
        self._unsynced: set[str] = set()
        self._templates: list[Flat] = []  # one for each structure, without storage
        self._template_of: dict[int, Flat] = {}
        self._fresh: Callable[[int], Tree] | None = None
        self.accepted: dict[int, Version] = {}  # the exchange that made a client's state
        self._offers: dict[int, tuple[Version, Flat]] = {}  # tentative: no method returns them

    def __getitem__(self, client: int) -> Tree:
        flat, spec = self._load(client)
        return tree.unflatten(flat, spec)

    def __setitem__(self, client: int, state: Tree) -> None:
        self._set(client, tree.flatten(state))
        self._spill()

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        self._evict(client)
        self._unsaved.discard(client)
        self.accepted.pop(client, None)
        self._forget_file(client)

    def __iter__(self) -> Iterator[int]:
        return iter([*self._in_memory, *(k for k in self._files if k not in self._in_memory)])  # reading moves them

    def __len__(self) -> int:
        return len(self._in_memory) + sum(k not in self._in_memory for k in self._files)

    def __contains__(self, client: object) -> bool:
        return client in self._in_memory or client in self._files

    def stack(self, clients: Sequence[int], fresh: Callable[[int], Tree]) -> Tree:
        """Return the states of clients of one architecture, stacked; `fresh` makes the state of a new client.

        A state from `fresh` is not stored: reading changes nothing.
        """
        rows: list[Flat] = []
        for k in clients:
            rows.append(self._load(k) if k in self else tree.flatten(fresh(k)))
            if not rows[0][0]:  # a state without tensors: the same for all
                break
        columns = zip(*(flat for flat, _ in rows), strict=True)
        return tree.unflatten([torch.stack(column) for column in columns], rows[0][1])

    def offer(self, clients: Sequence[int], states: Tree, version: Version) -> None:
        """Hold the new states of `clients`, stacked in this order, until they are accepted or dropped."""
        flat, spec = tree.flatten(states)
        self._offers.update({k: (version, ([t[i] for t in flat], spec)) for i, k in enumerate(clients)})

    def accept(self, clients: Sequence[int]) -> None:
        """Make the offered states of these clients their states."""
        for k in clients:
            if k in self._offers:
                self.accepted[k], (flat, spec) = self._offers.pop(k)
                if flat:  # else clients keep nothing: a million of them take no memory
                    self._set(k, ([t.clone() for t in flat], spec))
                    self._spill()

    def drop_offers(self) -> None:
        """Forget the offers that were not accepted."""
        self._offers.clear()

    def save(self) -> dict[int, File]:
        """Write the states that changed since the last call; return the file of each client's newest state, synced."""
        for k in sorted(self._unsaved):
            self._write(k, sync=True)
        for name in self._unsynced:
            files.sync(self.folder / name)
        self._unsynced.clear()
        if self._files:
            files.sync(self.folder)
        return dict(self._files)

    def restore(self, written: Mapping[int, File], fresh: Callable[[int], Tree]) -> None:
        """Start from states in files of the folder, read on demand; `fresh` gives the structure of each file."""
        self._in_memory.clear()
        self._unsaved.clear()
        self._offers.clear()
        self.accepted.clear()
        self._bytes, self._files, self._fresh = 0, dict(written), fresh
        self._template_of.clear()

    @property
    def folder(self) -> Path:
        """Return the folder to which states are written."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedloom-states-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        files.make(self._folder)
        return self._folder

    def _set(self, client: int, state: Flat) -> None:
        self._evict(client)
        self._forget_file(client)
        self._in_memory[client] = state
        self._unsaved.add(client)
        self._bytes += _nbytes(state)

    def _load(self, client: int) -> Flat:
        if client in self._in_memory:
            self._in_memory.move_to_end(client)
            return self._in_memory[client]
        file = self._files[client]
        if client in self._template_of:
            like = self._template_of[client]
        elif self._fresh is not None:
            like = tree.flatten(self._fresh(client))
        else:
            raise KeyError(client)
        try:
            state = tree.flatten(decode(files.read(self.folder, file), tree.unflatten(*like)))
        except CodecError as error:
            raise StorageError(
                f"{self.folder / file.name} does not hold the state of client {client}: {error}"
            ) from None
        self._in_memory[client] = state
        self._bytes += _nbytes(state)
        self._spill()
        return state

    def _spill(self) -> None:
        if self.budget is None or self._bytes <= self.budget:
            return
        before = self._bytes
        while self._bytes > self.budget and self._in_memory:
            client = next(iter(self._in_memory))
            if client in self._unsaved:
                self._write(client, sync=False)
            self._evict(client)
        self._freed += before - self._bytes
        if self._freed > self.budget / 4:
            self._freed = 0
            _return_memory()

    def _write(self, client: int, sync: bool) -> None:
        flat, spec = self._in_memory[client] if client in self._in_memory else self._load(client)
        name = state_name(client, self.version)
        self._files[client] = files.write(self.folder, name, encode(tree.unflatten(flat, spec)), sync=sync)
        self._unsaved.discard(client)
        self._template_of[client] = self._shape(flat, spec)
        if not sync:
            self._unsynced.add(name)

    def _shape(self, flat: list[Tensor], spec: Any) -> Flat:
        """Return a state of this structure that takes no memory, shared by all clients with this structure."""
        for like in self._templates:
            if like[1] == spec and all(
                a.shape == b.shape and a.dtype == b.dtype for a, b in zip(like[0], flat, strict=True)
            ):
                return like
        self._templates.append(([t.new_zeros(()).expand(t.shape) for t in flat], spec))
        return self._templates[-1]

    def _evict(self, client: int) -> None:
        if client in self._in_memory:
            self._bytes -= _nbytes(self._in_memory.pop(client))

    def _forget_file(self, client: int) -> None:
        file = self._files.pop(client, None)
        if file is not None and file.name not in self.protected:
            self._unsynced.discard(file.name)
            with suppress(OSError):
                (self.folder / file.name).unlink(missing_ok=True)


class TrialStore(ClientStore):
    """Store that begins as another one, which what changes here does not reach."""

    def __init__(self, before: ClientStore) -> None:
        super().__init__(before.budget)
        self._before = before
        self.accepted.update(before.accepted)

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys([*super().__iter__(), *self._before]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, client: object) -> bool:
        return super().__contains__(client) or client in self._before

    def _load(self, client: int) -> Flat:
        return super()._load(client) if super().__contains__(client) else self._before._load(client)


def state_name(client: int, version: int) -> str:
    """Return the file name of a client's state after a round."""
    return f"{client:08d}-{version:08d}.safetensors"


def _return_memory() -> None:
    """Give freed blocks back to the system: glibc would keep about as much again as the budget."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _nbytes(state: Flat) -> int:
    return sum(t.nbytes for t in state[0])
