"""Sites whose tables differ in their columns: refused, what all have, or what any has, with masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedloom.coordinator.descriptions import parts
from fedloom.data import Federation, federate, natural
from fedloom.tables import read_csv, read_sites

KIEL = pd.DataFrame({"age": [30.0, 50.0, 70.0, 90.0], "dose": [1.0, np.nan, 3.0, 5.0], "ill": ["no", "yes"] * 2})
ULM = pd.DataFrame({"ill": ["no", "yes"] * 2, "ward": ["east", "west", "west", None], "age": [20.0, 40, 60, 80]})


def write(folder: Path, **sites: pd.DataFrame) -> str:
    for site, frame in sites.items():
        frame.to_csv(folder / f"{site}.csv", index=False)
    return f"{folder}/*.csv"


def made(files: str, columns: str, prepare: str = "federated", **more: Any) -> Federation:
    said: dict[str, Any] = {"label": "ill", "prepare": prepare, "columns": columns, "test_fraction": 0, **more}
    data = read_sites(files, **said)
    assert data.owners is not None
    return federate(data.train, natural(data.owners, data.train.owners), test_fraction=0)


def test_a_column_that_a_site_lacks_is_a_mask_and_has_statistics_of_the_others_alone(tmp_path: Path) -> None:
    """The mean of dose is 3 of three patients, whatever Ulm has, and its gap in Kiel is masked as all of Ulm."""
    union = made(write(tmp_path, Kiel=KIEL, Ulm=ULM), "union")
    columns = ("age", "dose", "dose_missing", "ward_east", "ward_missing", "ward_west")
    assert union.train.columns == columns
    x = dict(zip(columns, union.train.x.numpy().T.tolist(), strict=True))
    deviation = np.sqrt(8 / 3)
    np.testing.assert_allclose(x["dose"], [-2 / deviation, 0, 0, 2 / deviation, 0, 0, 0, 0], rtol=1e-6)
    assert x["dose_missing"] == [0, 1, 0, 0, 1, 1, 1, 1]
    assert x["ward_missing"] == [1, 1, 1, 1, 0, 0, 0, 1]
    assert x["ward_east"] == [0, 0, 0, 0, 1, 0, 0, 0]
    table = parts(union)["table"]
    assert table["lacking"] == {"dose": "Ulm", "ward": "Kiel"}
    assert table["columns"]["dose"] == "standardised: mean 3, deviation 1.633; 5 missing as 0, and 1 in dose_missing"
    assert table["prepare"]["columns"] == "union"


def test_a_gap_in_a_column_that_all_have_is_the_median_as_ever(tmp_path: Path) -> None:
    gap = ULM.assign(dose=[2.0, 2.0, np.nan, 2.0])
    both = {name: made(write(tmp_path, Kiel=KIEL, Ulm=gap), name) for name in ("union", "shared")}
    assert "dose_missing" not in both["union"].train.columns
    np.testing.assert_array_equal(both["union"].train.x[:, :2], both["shared"].train.x[:, :2])
    assert (both["shared"].train.x[:, 1] == 0).sum() == 0


@pytest.mark.parametrize("prepare", ["federated", "standard"])
def test_shared_columns_are_those_of_tables_without_the_others(prepare: str, tmp_path: Path) -> None:
    for name in ("unlike", "alike"):
        (tmp_path / name).mkdir()
    shared = made(write(tmp_path / "unlike", Kiel=KIEL, Ulm=ULM), "shared", prepare)
    alike = write(tmp_path / "alike", Kiel=KIEL[["age", "ill"]], Ulm=ULM[["ill", "age"]])
    data = read_sites(alike, label="ill", prepare=prepare, test_fraction=0)
    assert shared.train.columns == data.train.columns == ("age",)
    np.testing.assert_array_equal(shared.train.x, data.train.x)
    assert parts(shared)["table"]["dropped"] == ["dose", "ward"]


def test_without_a_word_unlike_columns_are_refused_with_both_remedies(tmp_path: Path) -> None:
    files = write(tmp_path, Kiel=KIEL, Ulm=ULM)
    with pytest.raises(ValueError, match=r"\(drop=dose,ward\), or say which to take \(columns=shared, columns=union\)"):
        read_sites(files, label="ill", prepare="federated")


def test_columns_of_a_role_are_at_every_site(tmp_path: Path) -> None:
    files = write(tmp_path, Kiel=KIEL, Ulm=ULM.rename(columns={"ill": "Ill"}))
    for columns in ("shared", "union"):
        with pytest.raises(
            ValueError,
            match=r"got no 'ill' in Ulm; .*: name columns alike in all files \[FL-TABLE-007\]$",
        ):
            made(files, columns)


def test_spellings_of_one_column_are_warned_of(tmp_path: Path) -> None:
    files = write(tmp_path, Kiel=KIEL, Ulm=ULM.rename(columns={"age": "Age"}))
    with pytest.warns(UserWarning, match="'age' and 'Age' look like one column, and are several: name it alike"):
        assert {"age", "Age"} <= {*made(files, "union").train.columns}
    with pytest.raises(ValueError, match="got no column of features is in all files; 'age' and 'Age' look like one"):
        made(files, "shared")


def test_kinds_and_units_are_compared_where_columns_are(tmp_path: Path) -> None:
    other = ULM.assign(dose=["much", "little", "much", "much"])
    files = write(tmp_path, Kiel=KIEL, Mainz=ULM, Ulm=other)
    with pytest.raises(ValueError, match=r"'dose' with numbers in Kiel \(1\) and words in Ulm \('much'\)"):
        made(files, "union")


def test_true_and_false_of_one_site_are_numbers_beside_a_site_without(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    KIEL.assign(smokes=[True, False, True, True]).to_parquet(tmp_path / "Kiel.parquet")
    ULM.to_parquet(tmp_path / "Ulm.parquet")
    train = made(f"{tmp_path}/*.parquet", "union").train
    assert train.columns[:5] == ("age", "dose", "smokes", "dose_missing", "smokes_missing")
    csv = made(write(tmp_path, Kiel=KIEL.assign(smokes=[1, 0, 1, 1]), Ulm=ULM), "union").train
    np.testing.assert_array_equal(train.x, csv.x)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"columns": "both"}, "columns is shared or union, got 'both': name one of these"),
        ({"columns": "union", "prepare": "standard"}, "takes prepare=federated, got 'standard': name it, or take"),
        ({"columns": "union"}, "takes prepare=federated, got None"),
        ({"columns": "shared"}, "compares the tables of sites, got one table: leave it out, or name the files"),
        ({"columns": "shared", "text": "ward"}, "one column of features, got columns=shared beside text=ward"),
        ({"site": "Ulm"}, "which are none, got site=Ulm: name another"),
    ],
)
def test_words_that_one_table_has_no_use_for(said: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, Ulm=ULM)
    with pytest.raises(ValueError, match=message):
        read_csv(tmp_path / "Ulm.csv", label="ill", **said)


def test_new_rows_may_lack_what_a_site_lacked_and_nothing_else(tmp_path: Path) -> None:
    union = made(write(tmp_path, Kiel=KIEL, Ulm=ULM), "union")
    prepared = union.train.preparation
    new = prepared.new_rows(pd.DataFrame({"age": [50.0]}))  # type: ignore[union-attr]
    np.testing.assert_array_equal(new[0, 1:], [0, 1, 0, 1, 0])
    with pytest.raises(ValueError, match="got no 'age' in the new rows"):
        prepared.new_rows(pd.DataFrame({"dose": [1.0], "ward": ["east"]}))  # type: ignore[union-attr]
