"""A dictionary of sites: names, units and words that become shared ones, and what it refuses."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.tables import read_csv, read_parquet, read_sites
from fedloom.tables.dictionary import Dictionary

SAID = """
[columns.weight]
unit = "kg"
units = { lb = 0.5, st = [6.0, 0.25] }
[columns.sex]
also = ["gender"]
categories = { female = ["f", "w", "2"], male = ["m", "1"] }
[columns.ill]
categories = { yes = ["ja", "1"], no = ["nein", "0"] }

[sites.Kiel]
weight = { column = "Gewicht", unit = "lb" }
ill = { column = "krank" }
[sites.Leeds]
weight = { unit = "st" }
sex = { categories = { female = ["1"], male = ["2"] } }
[sites.Ulm]
"""
KIEL = "Gewicht,gender,krank\n100,w,ja\n200,m,nein\n,,ja\n"
LEEDS = "ill,sex,weight\n1,1,10\n0,2,20\n0,female,\n"
ULM = "weight,sex,ill\n50,female,yes\n100,1,no\n60,f,no\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shared.toml").write_text(SAID)
    for site, text in {"Kiel": KIEL, "Leeds": LEEDS, "Ulm": ULM}.items():
        (tmp_path / f"{site}.csv").write_text(text)
    return tmp_path


def read(folder: Path, **more: Any) -> Any:
    said = {"label": "ill", "prepare": "federated", "test_fraction": 0, "dictionary": folder / "shared.toml"}
    return read_sites(f"{folder}/*.csv", **{**said, **more}).train


def test_names_units_and_words_of_sites_become_shared_ones(folder: Path) -> None:
    train = read(folder)
    assert train.classes == ("no", "yes")
    assert train.y.tolist() == [1, 0, 1, 1, 0, 0, 1, 0, 0]
    frame = train.preparation.frame
    np.testing.assert_array_equal(frame["weight"], [50, 100, np.nan, 60.25, 120.25, np.nan, 50, 100, 60])
    female = frame["sex"].map({"female": 1, "male": 0}).tolist()
    np.testing.assert_array_equal(female, [1, 0, np.nan, 1, 0, 1, 1, 0, 1])
    assert train.preparation.facts["dictionary"] == Dictionary.read(folder / "shared.toml").digest


def test_a_file_of_one_site_is_read_as_beside_the_others(folder: Path) -> None:
    """A device reads its own table alone; another name of the file says nothing, and the site is said."""
    of_all = read(folder).preparation.frame
    said: dict[str, Any] = {"label": "ill", "prepare": "federated", "test_fraction": 0}
    said["dictionary"] = folder / "shared.toml"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = read_csv(folder / "Kiel.csv", **said).train.preparation.frame  # type: ignore[union-attr]
        (folder / "Kiel.csv").rename(folder / "data.csv")
        again = read_csv(folder / "data.csv", site="Kiel", **said).train.preparation.frame  # type: ignore[union-attr]
    for frame in (alone, again):
        assert frame.equals(of_all.iloc[:3])
    unsaid = pytest.warns(UserWarning, match="names the sites Kiel, Leeds, Ulm, got 'data', whose columns are taken as")
    with unsaid, pytest.raises(ValueError, match="no column 'ill'"):
        read_csv(folder / "data.csv", **said)
    with pytest.raises(ValueError, match=r"Leeds, Ulm, got site=Keil \(did you mean 'Kiel'\?\): name another, or add"):
        read_csv(folder / "data.csv", site="Keil", **said)


def test_parquet_is_read_alike(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    for site in ("Kiel", "Leeds", "Ulm"):
        pd.read_csv(folder / f"{site}.csv").to_parquet(folder / f"{site}.parquet")
    said: dict[str, Any] = {"label": "ill", "prepare": "federated", "test_fraction": 0}
    said["dictionary"] = folder / "shared.toml"
    train = read_sites(f"{folder}/*.parquet", **said).train
    np.testing.assert_array_equal(train.x, read(folder).x)
    alone = read_parquet(folder / "Leeds.parquet", **said).train
    assert alone.preparation.frame["weight"].tolist()[:2] == [60.25, 120.25]  # type: ignore[union-attr]


def test_sites_without_a_file_are_warned_of(folder: Path) -> None:
    (folder / "Ulm.csv").rename(folder / "Ulms.csv")
    lost = pytest.warns(UserWarning, match="are files, got no file of Ulm among Kiel, Leeds, Ulms: spell sites as")
    with (
        lost,
        pytest.warns(UserWarning, match=r"got 'Ulms' \(did you mean 'Ulm'\?\), whose columns are taken as shared"),
    ):
        read(folder)


@pytest.mark.parametrize(
    ("site", "text", "message"),
    [
        (
            "Ulm",
            "weight,sex,ill\n5,woman,yes\n",
            r"words of 'sex' must be in .*'female', 'f', .*, got 'woman' in line 2",
        ),
        ("Ulm", "weight,sex,ill\n5,f,maybe\n", r"words of 'ill' must be in .*, got 'maybe' in line 2: add it to"),
        ("Ulm", "weight,sex,ill\nheavy,f,yes\n", r"'weight' must hold numbers, since it has a unit in .*, got 'heavy'"),
        ("Ulm", "weight,sex,gender,ill\n5,f,f,yes\n", r"distinct names, got 'sex' and 'gender', which are 'sex' by"),
        ("Kiel", "weight,sex,krank\n5,f,ja\n", r"columns of sites.Kiel must be in its file, got 'Gewicht'"),
    ],
)
def test_tables_that_do_not_fit_are_refused(site: str, text: str, message: str, folder: Path) -> None:
    (folder / f"{site}.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[columns", "a dictionary of columns must be TOML, got"),
        ("[colums.a]", r"a dictionary has columns, sites, got 'colums' \(did you mean 'columns'\?\)"),
        ("columns = 3", "columns must be a table of tables, got 3"),
        ("[columns.a]\nsynonyms = []", "columns.a has also, unit, units, categories, got 'synonyms'"),
        ("[columns.a]\nalso = 'b'", "columns.a.also must be a list of names, got 'b'"),
        (
            "[columns.a]\nunit = 'kg'\nunits = { lb = 0 }",
            "columns.a.units must have a factor but 0, .* got .0, 0.0. of",
        ),
        (
            "[columns.a]\nunit = 'kg'\nunits = { lb = [1] }",
            "columns.a.units must have a factor but 0, or .factor, offs",
        ),
        (
            "[columns.a]\nunit = 'kg'\nunits = { lb = true }",
            "columns.a.units must be a factor, or .factor, offset., by",
        ),
        ("[columns.a]\nunits = { lb = 2 }", "columns.a.unit must name the shared unit, got none"),
        ("[columns.a]\nunit = 'lb'\nunits = { lb = 2 }", "columns.a.unit must .*, got 'lb', which is converted"),
        ("[columns.a]\ncategories = { f = ['x'], m = ['x'] }", "is of one category, got 'x' of 'f' and 'm'"),
        ("[columns.a]\ncategories = { NA = ['x'] }", "columns.a.categories must be words, got 'NA', which means a gap"),
        ("[columns.a]\nunit = 'kg'\ncategories = { f = [] }", "columns.a must have a unit or categories, got both"),
        ("[columns.a]\nalso = ['b']\n[columns.b]", "a name is of one column, got 'b' of two"),
        (
            "[sites.Kiel]\na = {}",
            "a column of a site must be among the columns, got 'a' of sites.Kiel: add .columns.a.",
        ),
        ("[columns.a]\nunit = 'kg'\n[sites.Kiel]\na = { unit = 'st' }", "must be a unit of columns.a, kg, got 'st'"),
        ("[columns.a]\n[sites.Kiel]\na = { unit = 'st' }", "must be a unit of columns.a, which has none, got 'st'"),
        (
            "[columns.a]\ncategories = { f = [] }\n[sites.Kiel]\na = { categories = { w = ['1'] } }",
            "sites.Kiel.a.categories must be those of columns.a, got 'w'",
        ),
        (".".join("a" * 40) + " = 1", "a key has at most 32 parts"),
    ],
)
def test_dictionaries_that_break_a_rule(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        Dictionary.read(tmp_path / "d.toml")


def test_a_dictionary_is_a_file_of_bounded_size(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file '.*d.toml'; give the path of a dictionary"):
        Dictionary.read(tmp_path / "d.toml")
    (tmp_path / "d.toml").write_text("#" * ((1 << 20) + 1))
    with pytest.raises(ValueError, match="it has at most 1,048,576 bytes, got more"):
        Dictionary.read(tmp_path / "d.toml")
