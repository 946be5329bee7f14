"""Parquet: one file, a file of each site, and words where it cannot be read."""

from __future__ import annotations

import builtins
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedloom.tables import from_frame, read_parquet, read_sites
from hospitals import hospitals

pytest.importorskip("pyarrow")
GIVEN: dict[str, Any] = {"label": "readmitted", "drop": ["patient", "los_days"], "prepare": "standard"}


def frames() -> dict[str, pd.DataFrame]:
    made = {}
    for site, rows in hospitals().items():
        frame = pd.DataFrame(rows).replace({"": None, "NA": None})
        made[site] = frame.assign(age=frame["age"].astype(float), creatinine=frame["creatinine"].astype(float))
    return made


def test_files_are_as_their_frames(tmp_path: Path) -> None:
    made = frames()
    for site, frame in made.items():
        frame[sorted(frame.columns)].to_parquet(tmp_path / f"{site}.parquet")
    one = read_parquet(tmp_path / "Kiel.parquet", **GIVEN).train
    frame = from_frame(made["Kiel"][sorted(made["Kiel"].columns)], **GIVEN).train
    assert one.name == "Kiel"
    assert torch.equal(one.x, frame.x)
    whole = pd.concat([frame.assign(client=site) for site, frame in made.items()])
    whole = whole[sorted(whole.columns)]
    several, other = read_sites(str(tmp_path / "*.parquet"), **GIVEN), from_frame(whole, client="client", **GIVEN)
    assert torch.equal(several.train.x, other.train.x)
    assert torch.equal(several.train.y, other.train.y)
    assert several.train.owners == other.train.owners
    assert several.owners is not None
    assert other.owners is not None
    assert several.owners.tolist() == other.owners.tolist()


def test_decimals_are_numbers(tmp_path: Path) -> None:
    """As databases write prices; they were words."""
    cost = [Decimal("0.25"), None, Decimal("1.50"), Decimal("3.75")] * 10
    frame = pd.DataFrame({"cost": cost, "days": [Decimal(k) / 4 for k in range(40)], "label": [0, 1] * 20})
    floats = frame.astype({"cost": float, "days": float})
    given: dict[str, Any] = {"prepare": "standard", "test_fraction": 0.0}
    for roles in ({"label": "label"}, {"target": "days"}):
        one, other = (from_frame(which, **roles, **given).train for which in (frame, floats))
        assert one.columns == other.columns == tuple(c for c in frame.columns if c not in roles.values())
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
    assert one.preparation is not None
    assert torch.equal(torch.from_numpy(one.preparation.new_rows(frame)), one.x)
    assert from_frame(frame, categories=["cost"], **given).train.columns[1:] == tuple(
        f"cost_{word}" for word in ("0.25", "1.50", "3.75", "missing")
    )
    frame.to_parquet(tmp_path / "a.parquet")
    floats.to_parquet(tmp_path / "b.parquet")
    joined = read_sites(str(tmp_path / "*.parquet"), drop=["cost"], test_fraction=0.0).train
    assert joined.x[:, 0].tolist() == 2 * floats["days"].tolist()


def test_differences_of_files(tmp_path: Path) -> None:
    made = frames()
    made["Kiel"] = made["Kiel"].assign(age="old").rename(columns={"sex": "gender"})
    for site, frame in made.items():
        frame.to_parquet(tmp_path / f"{site}.parquet")
    with pytest.raises(ValueError, match="no 'sex', 'gender' besides in Kiel; 'age' with numbers in "):
        read_sites(str(tmp_path / "*.parquet"), **GIVEN)
    with pytest.raises(ValueError, match=r"gaps are words in text files, got gaps=x for .*parquet: leave it out"):
        read_sites(str(tmp_path / "*.parquet"), gaps="x", **GIVEN)


def test_rows_that_are_wrong_are_named_by_their_file(tmp_path: Path) -> None:
    made = frames()
    for site, frame in made.items():
        days = frame["los_days"].astype(float)
        days[3] = None if site == "Kiel" else 2.0
        frame.assign(los_days=days).to_parquet(tmp_path / f"{site}.parquet")
    with pytest.raises(ValueError, match=r"'los_days' without a value in row 3 of Kiel.parquet: leave out"):
        read_sites(str(tmp_path / "*.parquet"), target="los_days", drop=["patient", "readmitted"], prepare="standard")


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"there is no file '.*none.parquet'; give the path of a .parquet file"):
        read_parquet(tmp_path / "none.parquet")
    (tmp_path / "t.parquet").write_text("x,label\n1,2\n")
    with pytest.raises(ValueError, match=r"the file must be Parquet, got .*: write it again with to_parquet"):
        read_parquet(tmp_path / "t.parquet")
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ValueError, match=r"pandas and pyarrow, got .*t.parquet without them: pip install '<PATH>\[parquet"
    ):
        read_parquet(tmp_path / "t.parquet")
