"""The store of client states: in memory, on disk beyond a budget, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedloom import Maybe, Weights
from fedloom.core import tree
from fedloom.core.errors import StorageError
from fedloom.storage.files import File
from fedloom.storage.store import ClientStore, TrialStore


def state(k: int, present: bool = True) -> tuple[Weights, Maybe[Tensor]]:
    g = torch.Generator().manual_seed(k)
    weights = Weights(params={"w": torch.randn(5, 3, generator=g)}, buffers={"n": torch.tensor(k)})
    value = torch.randn(4, generator=g, dtype=torch.float64)
    return weights, Maybe.some(value) if present else Maybe.none(value)


def same(a: object, b: object) -> bool:
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


SIZE = sum(t.nbytes for t in tree.leaves(state(0)))


def never(client: int) -> object:
    raise AssertionError(f"client {client} is known")


def test_a_budget_moves_the_least_recently_used_to_disk_and_back(tmp_path: Path) -> None:
    store = ClientStore(budget=3 * SIZE, folder=tmp_path / "states")
    for k in range(10):
        store[k] = state(k, present=k % 2 == 0)
        assert store._bytes <= 3 * SIZE
    assert sorted(store) == list(range(10))
    assert len(store) == 10
    assert len(list((tmp_path / "states").iterdir())) == 7
    for k in (0, 9, 3, 0, 5):
        assert same(store[k], state(k, present=k % 2 == 0))
        assert store._bytes <= 3 * SIZE
    stacked = store.stack([1, 8, 2], never)
    assert same(tree.take(stacked, 1), state(8))
    store.offer([4, 5, 6], tree.stack([state(40), state(50), state(60)]), (3, 0))
    assert same(store[4], state(4))  # nobody sees what is not accepted
    store.accept([4, 6])
    store.drop_offers()
    store.accept([5])
    assert [bool(same(store[k], state(10 * k))) for k in (4, 5, 6)] == [True, False, True]
    assert store.accepted == {4: (3, 0), 6: (3, 0)}
    del store[4]
    assert 4 not in store
    with pytest.raises(KeyError):
        store[4]


def test_a_budget_smaller_than_one_state_still_works() -> None:
    store = ClientStore(budget=1)
    for k in range(3):
        store[k] = state(k)
    assert store._bytes == 0
    assert all(same(store[k], state(k)) for k in range(3))


def test_saved_states_come_back_in_another_store(tmp_path: Path) -> None:
    store = ClientStore(budget=2 * SIZE, folder=tmp_path)
    for k in range(5):
        store.version = k + 1
        store[k] = state(k, present=k != 3)
    written = store.save()
    assert sorted(written) == list(range(5))
    assert store.save() == written  # nothing moved: nothing is written again
    other = ClientStore(folder=tmp_path)
    other.restore(written, lambda k: state(99))
    assert sorted(other) == list(range(5))
    assert all(same(other[k], state(k, present=k != 3)) for k in range(5))


def test_files_of_old_versions_go_unless_a_checkpoint_names_them(tmp_path: Path) -> None:
    store = ClientStore(folder=tmp_path)
    store.version = 1
    store[0], store[1] = state(0), state(1)
    store.protected = {store.save()[0].name}
    store.version = 2
    store[0], store[1] = state(10), state(11)
    store.save()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "00000000-00000001.safetensors", "00000000-00000002.safetensors", "00000001-00000002.safetensors"
    ]  # fmt: skip


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "other"])
def test_a_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    store = ClientStore(folder=tmp_path)
    store[7] = state(7)
    written = store.save()
    path = tmp_path / written[7].name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-3], "changed": data[:-1] + b"x", "other": data}[damage])
    like = Weights(params={"v": torch.zeros(2)}) if damage == "other" else state(0)
    store.restore({7: File(written[7].name, written[7].digest)}, lambda k: like)
    with pytest.raises(StorageError, match=path.name):
        store[7]


def test_a_trial_begins_as_the_store_and_leaves_it_alone(tmp_path: Path) -> None:
    store = ClientStore(budget=2 * SIZE, folder=tmp_path / "states")
    for k in range(4):
        store[k] = state(k)
    store.offer([3], tree.stack([state(30)]), (1, 0))
    store.accept([3])
    known, files = dict(store), sorted((tmp_path / "states").iterdir())
    trial = TrialStore(store)
    assert sorted(trial) == [0, 1, 2, 3]
    assert trial.accepted == {3: (1, 0)}
    trial.offer([0, 3, 7], tree.stack([state(k) for k in (10, 31, 70)]), (2, 0))
    trial.accept([0, 3, 7])
    assert sorted(trial) == [0, 1, 2, 3, 7]
    assert len(trial) == 5
    assert 7 in trial
    assert 8 not in trial
    for k, other in {0: 10, 1: 1, 2: 2, 3: 31, 7: 70}.items():
        assert same(trial[k], state(other))
    assert same(tree.take(trial.stack([1, 7], never), 0), state(1))
    assert sorted(store) == [0, 1, 2, 3]
    assert all(same(store[k], known[k]) for k in store)
    assert store.accepted == {3: (1, 0)}
    assert sorted((tmp_path / "states").iterdir()) == files
