"""Groups stay whole: no group on both sides of a split, whoever holds its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedloom.core.errors import SettingError
from fedloom.data import Dataset, Examples, Federation, Partition, by_lists, federate, iid, natural, pooled, split
from fedloom.data.groups import split_whole_groups
from fedloom.experiments import catalogue
from fedloom.tables import read_csv, read_sites
from hospitals import write_hospitals

Ints = npt.NDArray[np.int64]


def examples(y: Ints, groups: Ints | None) -> Examples:
    return Examples(torch.arange(len(y), dtype=torch.float32)[:, None], torch.from_numpy(y), 3, groups=groups)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(0, 3)), min_size=4, max_size=60),
    fractions=st.tuples(st.floats(0.05, 0.9), st.floats(0.05, 0.9)),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_group_is_on_both_sides(rows: list[tuple[int, int, int]], fractions: tuple[float, float], seed: int) -> None:
    groups, y, owner = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    partition = natural(owner)
    made = federate(examples(y, groups), partition, test_fraction=fractions[0], val_fraction=fractions[1], seed=seed)
    parts = [made.partition, made.local_test, made.local_val]
    held = [set(groups[part.indices].tolist()) for part in parts if part is not None]
    for k, one in enumerate(held):
        for other in held[k + 1 :]:
            assert not one & other
    together = np.concatenate([part.indices for part in parts if part is not None])
    assert sorted(together.tolist()) == sorted(partition.indices.tolist())
    assert (made.partition.sizes > 0).all()
    for client in range(partition.num_clients):  # rows stay with their client, in its order
        mine = partition.rows(client).tolist()
        for part in parts:
            if part is not None:
                own = part.rows(client).tolist()
                assert own == [row for row in mine if row in set(own)]


def test_groups_of_one_row_give_up_as_many_as_without_groups() -> None:
    y = np.random.default_rng(0).integers(0, 3, 200)
    partition = iid(y, 7, seed=0)
    whole = split_whole_groups(partition, y, np.arange(200), 0.2, 5)[1]
    alone = split(partition, y, 0.2, 5)[1]
    np.testing.assert_array_equal(whole.counts(y, 3), alone.counts(y, 3))


def test_as_near_to_the_share_of_each_class_as_groups_allow() -> None:
    y = np.repeat([0, 1], 100)
    groups = np.arange(200) // 5  # 40 groups, 20 of each class
    kept, held = split_whole_groups(pooled(200), y, groups, 0.2, 3)
    assert held.counts(y, 2).tolist() == [[20, 20]]
    assert kept.counts(y, 2).tolist() == [[80, 80]]
    assert not np.array_equal(held.indices, split_whole_groups(pooled(200), y, groups, 0.2, 4)[1].indices)
    assert not np.array_equal(held.indices, split_whole_groups(pooled(200), y, groups, 0.2, 3, stream=1)[1].indices)


def test_a_group_too_large_for_the_share_stays() -> None:
    kept, held = split_whole_groups(pooled(10), np.zeros(10, np.int64), np.array([0] * 9 + [1]), 0.2, 0)
    assert (kept.sizes.tolist(), held.indices.tolist()) == ([9], [9])
    kept, held = split_whole_groups(pooled(10), np.zeros(10, np.int64), np.zeros(10, np.int64), 0.9, 0)
    assert (kept.sizes.tolist(), held.sizes.tolist()) == ([10], [0])  # nobody gives up the last example


def test_a_shared_group_never_takes_all_of_another_client() -> None:
    """Client 1 has rows of group 0 alone, on which client 0 decides."""
    partition = by_lists([[0, 1, 2, 3], [4, 5]])
    groups = np.array([0, 1, 2, 3, 0, 0])
    for seed in range(30):
        kept, held = split_whole_groups(partition, np.zeros(6, np.int64), groups, 0.5, seed)
        assert kept.sizes.tolist() == [2, 2]
        assert 0 not in held.indices


def test_a_shared_group_is_held_out_at_all_clients() -> None:
    partition = by_lists([[0, 1], [2, 3]])
    held = [
        split_whole_groups(partition, np.zeros(4, np.int64), np.array([0, 1, 0, 2]), 0.5, s)[1].indices.tolist()
        for s in range(20)
    ]
    assert sorted({tuple(rows) for rows in held}) == [(0, 2), (1, 3)]


def test_a_table_keeps_patients_together_in_its_test_set_and_in_those_of_clients(tmp_path: Path) -> None:
    write_hospitals(tmp_path)
    data = read_sites(
        str(tmp_path / "*.csv"), label="readmitted", drop=["los_days"], group="patient", prepare="standard"
    )
    train, test = data.train, data.test
    assert test is not None
    assert train.groups is not None
    assert test.groups is not None
    assert data.owners is not None
    assert not set(train.groups.tolist()) & set(test.groups.tolist())
    assert 0.15 < len(test) / (len(train) + len(test)) < 0.25
    assert not any("patient" in column for column in train.columns)
    made = federate(train, natural(data.owners), test=test, val_fraction=0.2)
    assert made.local_test is not None
    assert made.local_test.sizes.sum() > 0


def test_groups_follow_examples_through_what_settings_make_of_them(tmp_path: Path) -> None:
    y = np.arange(12) % 3
    groups = np.arange(12) // 2
    one = examples(y, groups)
    assert one.select(np.array([4, 0])).groups.tolist() == [2, 0]  # type: ignore[union-attr]
    merged = Dataset(one, examples(y, groups)).merged().train.groups
    assert merged is not None
    assert merged.tolist() == [*groups, *groups]
    assert Dataset(one, examples(y, None)).merged().train.groups is None
    with pytest.raises(SettingError, match=r"public examples are drawn row by row, .* got data.public = 3: name other"):
        catalogue.take_out(Dataset(one, None), 3, 0)


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        (["p1,1,0,train", "p1,2,1,test", "p2,3,1,train"], {"split": "s"},
         "a group in 'who' is on one side of 's', got 'p1' in train and in test: say the same for all of its rows"),
        ([",1,0,train", "p1,2,1,train"], {"drop": ["s"]}, "'who' must have a value in every row, got '' in line 2"),
        (["p1,1,0,train"], {"client": "who"}, "a column has one role, got 'who' in several of label, target, client"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, rows: list[str], arguments: dict[str, str], message: str) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["who,x,label,s", *rows]) + "\n")
    with pytest.raises(ValueError, match=message):
        read_csv(tmp_path / "t.csv", group="who", **arguments)  # type: ignore[arg-type]


def test_a_federation_of_parts_keeps_groups_whole() -> None:
    y = np.zeros(4, np.int64)
    train = examples(y, np.array([0, 0, 1, 1]))
    with pytest.raises(ValueError, match="got group 0, that of row 0, in partition and local_test: use federate"):
        Federation(train, by_lists([[0, 2]]), local_test=by_lists([[1]]))
    with pytest.raises(ValueError, match="group 1, that of row 2, in partition and local_test"):
        federate(train, Partition.from_lists([[0, 1, 2, 3]]), held_out=np.array([False, False, False, True]))
    with pytest.raises(ValueError, match=r"groups must be int64 of shape \(4,\), got int64 of shape \(3,\)"):
        examples(y, np.array([0, 0, 1]))


def test_what_another_client_has_held_out_counts() -> None:
    """Client 1 is to give up 5 of 10 rows: where client 0 has held out its 5 shared ones, it gives up no more."""
    partition = by_lists([range(10), range(10, 20)])
    groups = np.array([*[0] * 5, *range(1, 6), *[0] * 5, *range(6, 11)])
    seen = set()
    for seed in range(20):
        held = split_whole_groups(partition, np.zeros(20, np.int64), groups, 0.5, seed)[1]
        shared = 0 in held.indices
        assert set(held.rows(1).tolist()) == ({*range(10, 15)} if shared else {*range(15, 20)})
        seen.add(shared)
    assert seen == {True, False}
