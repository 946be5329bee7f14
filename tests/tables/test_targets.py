"""Targets that are no classes: which numbers they are, and what is refused or warned of."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedloom.data import federate, iid
from fedloom.tables import from_frame, read_csv


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_one_target_and_several(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "y,a,b,z", "1,5,2.5,3", "2,7,1,4", "0,6,1,5")
    one = read_csv(path, target="y", test_fraction=0).train
    assert (one.y.dtype, one.y.tolist(), one.num_classes, one.targets) == (torch.float32, [1, 2, 0], 1, ("y",))
    assert (one.columns, one.classes) == (("a", "b", "z"), ())
    two = read_csv(path, target=["y", "b"], test_fraction=0).train
    assert two.y.tolist() == [[1, 2.5], [2, 1], [0, 1]]
    assert (two.num_classes, two.targets, two.columns) == (2, ("y", "b"), ("a", "z"))
    assert "targets y, b" in repr(two)
    frame = from_frame(pd.read_csv(path), target=["y", "b"], test_fraction=0).train
    assert torch.equal(frame.y, two.y)
    assert torch.equal(frame.x, two.x)


def test_a_random_fifth_is_the_test_set_and_targets_are_held_out_at_random(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = write(tmp_path / "t.csv", "y,a", *(f"{y:.3f},{a:.3f}" for y, a in rng.normal(size=(100, 2))))
    data = read_csv(path, target="y", prepare="standard")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (80, 20)
    made = federate(data.train, iid(data.train.y, 4, seed=0), test=data.test, val_fraction=0.25)
    assert made.local_test is not None
    assert made.local_val is not None
    assert [p.sizes.tolist() for p in (made.partition, made.local_test, made.local_val)] == [[12] * 4, [4] * 4, [4] * 4]


@pytest.mark.parametrize(
    ("cells", "arguments", "message"),
    [
        (["1", "", "3", "NA"], {}, "a number in every row, got 'y' without a value in line 3, line 5: leave out rows"),
        ([*["1"] * 3, *[""] * 7], {}, "without a value in line 5, line 6, line 7, line 8, line 9 and 2 more: "),
        (["yes", "no"], {}, "got 'y' with 'yes' in line 2 and 1 more: name a column of classes as label=y"),
        (["2020-01-01", "2020-02-01"], {}, "'y' with the date '2020-01-01' in line 2 and 1 more: make numbers of"),
        (["3 days", "4 days"], {}, "'y' with the unit of '3 days' in line 2 and 1 more: write the unit 'days' into"),
        (["3kg", "4", "5"], {}, "with the unit of '3kg' in line 2: write the unit 'kg'"),
        (["12%", "4", "5"], {}, "write the unit '%'"),
        (["1", "2", "unknown"], {}, "'y' with 'unknown' in line 4: mend it, or name words that mean a gap .gaps=u"),
        (["1", "2", "k.A."], {"gaps": ["k.A."]}, "'y' without a value in line 4"),
        (["1e60", "2"], {}, r"'y' with 1e\+60 in line 2, too large for float32: use another unit"),
        (["", ""], {}, "'y' without a value in line 2, line 3"),
        (["1", "2"], {"target": "Y"}, r"no column 'Y' .did you mean 'y'\?., got x, y"),
        (["1", "2"], {"target": ["x", "y"]}, "a table must have a column of features, got x, y"),
        (["1", "2"], {"target": ["y", "y"]}, "a column has one role, got 'y' in several of label, target, client"),
        (["1", "2"], {"label": "x"}, "got label=x and target=y: leave one of them out"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, cells: list[str], arguments: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "t.csv", "x,y", *(f"{k},{cell}" for k, cell in enumerate(cells)))
    with pytest.raises(ValueError, match=message):
        read_csv(path, **{"target": "y", "test_fraction": 0, **arguments})


def test_all_targets_are_refused_in_one_message(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y,z", "1,,a", "2,3,b")
    with pytest.raises(ValueError, match="got 'y' without a value in line 2; 'z' with 'a' in line 2 and 1 more: leave"):
        read_csv(path, target=["y", "z"])


def test_dates_of_a_frame_are_refused() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": pd.to_datetime(["2020-01-01", "2021-01-01"])})
    with pytest.raises(ValueError, match=r"got 'y' with datetime64.* values: make numbers of dates"):
        from_frame(frame, target="y")


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({"a": [1, 5, 2, 4], "y": [24, 120, 48, 96]}, {}, "t.csv: the target 'y' can be computed of 'a' alone: drop=a"),
        ({"a": [3, 2, 9, 4], "y": [3, 2, 9, 4]}, {}, "the target 'y' can be computed of 'a' alone"),
        ({"a": [3, 2, 9, 4], "z": [3, 2, 9, 4], "y": [1, 7, 1, 5]}, {"target": ["y", "z"]}, "the target 'z' .* of 'a'"),
        ({"a": [3, 2, 9, 4], "y": [7, 7, 7, 7]}, {}, "the target 'y' is 7 in every row, so there is nothing to learn"),
        ({"a": [3, 2, 9, 4], "y": [0, 1, 1, 0]}, {}, "'y' holds 0 and 1 alone: name classes as label=y"),
    ],
)
def test_what_is_warned_of(
    tmp_path: Path, columns: dict[str, list[int]], arguments: dict[str, Any], message: str
) -> None:
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path = write(tmp_path / "t.csv", ",".join(columns), *rows)
    with pytest.warns(UserWarning, match=message):
        read_csv(path, **{"target": "y", "test_fraction": 0, **arguments})


def test_columns_that_resemble_the_target_are_no_copies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=50)
    rows = (f"{a:.6f},{b:.6f},7" for a, b in zip(y, y + 1e-3 * rng.normal(size=50), strict=True))
    path = write(tmp_path / "t.csv", "y,a,same", *rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_csv(path, target="y")
