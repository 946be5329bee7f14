"""Shakespeare by role: windows, next characters, parts by time, LEAF's two layouts, and files that break rules."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.sources import load
from fedloom.sources.shakespeare import LETTERS, VOCABULARY, windows


def raw(folder: Path, **texts: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = {"users": [*texts], "num_samples": [1] * len(texts), "user_data": {u: {"raw": t} for u, t in texts.items()}}
    (folder / "all_data.json").write_text(json.dumps(data))
    return folder


def long(seed: int, count: int) -> str:
    return "".join(np.random.RandomState(seed).choice(list(LETTERS), count))


def test_the_alphabet_is_that_of_leaf() -> None:
    assert len(LETTERS) == 80 == len(set(LETTERS))
    assert VOCABULARY.size == 82


def test_windows_and_what_follows_each_place() -> None:
    x, y = windows([5, 6, 7, 8, 9, 10, 11], 3, 20)
    assert x.tolist() == [[5, 6, 7], [8, 9, 10]]
    assert y.tolist() == [[6, 7, 8], [9, 10, 11]]
    x, y = windows([5, 6, 7, 8, 9], 3, 20)
    assert x.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert y.tolist() == [[6, 7, 8], [9, -100, -100]]
    assert len(windows([5], 3, 20)[0]) == 0
    assert x.dtype == np.uint8


def test_a_role_is_divided_by_time(tmp_path: Path) -> None:
    text = {"A": long(1, 1000), "B": long(2, 600), "short": long(3, 90)}
    data = load("shakespeare", raw(tmp_path / "data" / "all_data", **text).parents[1])
    assert data.train.owners == ("A", "B")  # the third has nothing to test on
    assert data.owners is not None
    assert data.held_out is not None
    for owner, name in enumerate("AB"):
        rows = data.owners == owner
        for held_out, own in ((False, text[name][: int(0.8 * len(text[name]))]),
                              (True, text[name][int(0.8 * len(text[name])) + 80 :])):  # fmt: skip
            part = data.train.select(np.flatnonzero(rows & (data.held_out == held_out)))
            assert "".join(VOCABULARY.written(row) for row in part.x.tolist()) == own[:-1]
            assert VOCABULARY.written([t for row in part.y.tolist() for t in row if t != -100]) == own[1:]
    assert data.test is not None
    assert (len(data.test), data.train.num_classes) == (data.held_out.sum(), 82)


def test_files_whose_names_begin_with_a_dot_are_left_out(tmp_path: Path) -> None:
    (raw(tmp_path / "raw", A=long(1, 1000)) / "._all_data.json").write_text("no JSON")
    assert load("shakespeare", tmp_path / "raw").train.owners == ("A",)
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        sample = {"users": ["A"], "user_data": {"A": {"x": ["a" * 80], "y": ["b"]}}}
        (tmp_path / part / "a.json").write_text(json.dumps(sample))
        (tmp_path / part / "._a.json").write_text("no JSON")
    assert load("shakespeare", tmp_path).train.owners == ("A",)


def test_files_may_be_compressed_and_roles_few(tmp_path: Path) -> None:
    folder = raw(tmp_path, **{f"R{i}": long(i, 1000 + 10 * i) for i in range(9)})
    (folder / "all.json.xz").write_bytes(lzma.compress((folder / "all_data.json").read_bytes()))
    (folder / "all_data.json").unlink()
    data = load("shakespeare", folder, roles=3, characters=1020)
    assert data.train.owners == ("R2", "R4", "R6")  # of R2 to R8, which have as many characters
    assert data.owners is not None
    assert np.bincount(data.owners).tolist() == [13, 13, 13]  # 816 in 11 windows, 124 in 2


def test_the_samples_of_leaf_count_at_their_last_place(tmp_path: Path) -> None:
    text = long(4, 90)
    for part, shift in (("train", 0), ("test", 4)):
        (tmp_path / part).mkdir()
        x = [text[i + shift : i + shift + 80] for i in range(3)]
        y = [text[i + shift + 80] for i in range(3)]
        data = {"users": ["A"], "num_samples": [3], "user_data": {"A": {"x": x, "y": y}}}
        (tmp_path / part / "a.json").write_text(json.dumps(data))
    found = load("shakespeare", tmp_path)
    assert VOCABULARY.written(found.train.x[0].tolist()) == text[:80]
    assert (found.train.y != -100).sum(1).tolist() == [1] * 6
    assert VOCABULARY.written(found.train.y[:, -1].tolist()) == text[80:83] + text[84:87]
    assert found.held_out is not None
    assert found.held_out.tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("content", "said", "message"),
    [
        ({"A": 7}, {}, "role 'A' must have its text as raw, got int"),
        ({"A": "too short"}, {}, "a role must have examples to train and to test on, got none: take more characters"),
        ({"A": long(0, 900)}, {"roles": 2}, "there must be 2 roles with examples to test on, got 1: take fewer"),
        ({"A": long(0, 900)}, {"roles": -1}, "roles of shakespeare is a whole number from 0, got -1: 0 takes all"),
        ({"A": long(0, 900)}, {"parts": 1}, "of shakespeare one says some of roles, characters, got 'parts'"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: Any, said: Any, message: str) -> None:
    raw(tmp_path, **content)
    with pytest.raises(ValueError, match=r".") as error:
        load("shakespeare", tmp_path, **said)
    assert message in str(error.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must hold all_data/\*.json of LEAF, or train/ and test/ of its samples"):
        load("shakespeare", tmp_path)
    (tmp_path / "a.json").write_text('{"users": ["A"]')
    with pytest.raises(ValueError, match="must be one whole JSON document"):
        load("shakespeare", tmp_path)
    (tmp_path / "a.json").write_text('{"users": ["A"], "user_data": {"B": {}}}')
    with pytest.raises(ValueError, match="an object of the same users, got 1 and 1, which differ"):
        load("shakespeare", tmp_path)
    for users, message in (
        ([1], "got the user 1: write names as text"),
        ([["1"]], r"got the user \['1'\]: write"),
        ({}, "got dict and dict"),
    ):
        content = {"users": users, "user_data": {str(user): {"raw": long(0, 900)} for user in users}}
        (tmp_path / "a.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"must hold users, a list of names, and user_data, .*{message}"):
            load("shakespeare", tmp_path)
    (tmp_path / "a.json.xz").write_bytes(b"no archive")
    (tmp_path / "a.json").unlink()
    with pytest.raises(ValueError, match="must be one whole JSON document"):
        load("shakespeare", tmp_path)
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        data = {"users": ["A"], "user_data": {"A": {"x": ["short"], "y": ["a"]}}}
        (tmp_path / part / "a.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="examples of role 'A' must have 80 characters, got 'short'"):
        load("shakespeare", tmp_path)
    with pytest.raises(ValueError, match="of mnist one says nothing, got 'roles'"):
        load("mnist", tmp_path, roles=3)
