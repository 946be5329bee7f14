"""Tables of new rows: columns by name, read as the run's table was, and every mistake in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedloom import SettingError, read_csv, read_sites
from fedloom.experiments.prediction_tables import RunTable, TableRows

PLAIN = """id,height,weight,site,ill
a,1.5,60,north,no
b,1.8,75,south,yes
c,1.7,70,north,no
d,1.6,90,south,yes
"""
SAID = "label=ill&client=site&drop=id"
WORDS = "height,smokes,ill\n1.5,yes,no\n,no,yes\n1.7,NA,no\n1.6,yes,yes\n"


def table(folder: Path, text: str = PLAIN, said: str = SAID, **more: Any) -> RunTable:
    """The table of a run, of which all rows were trained on."""
    file = folder / "trained.csv"
    file.write_text(text)
    given = {
        k: v.split(",") if k in ("drop", "gaps", "target") else v for k, v in (p.split("=") for p in said.split("&"))
    }
    train = read_csv(file, **given, **more, test_fraction=0.0).train
    return RunTable(train, f"{file}?{said}", train.preparation)


def read(run: RunTable, folder: Path, text: str, said: str = "", *, with_targets: bool = True) -> TableRows:
    file = folder / "new.csv"
    file.write_text(text)
    return run.read(str(file), run.arguments(said), with_targets)


def test_columns_are_found_by_name_and_others_have_their_roles(tmp_path: Path) -> None:
    run = table(tmp_path)
    found = read(run, tmp_path, "site;weight;ill;height;id\neast;80,5;yes;1,9;z\n\nwest;50;no;1,4;y\n")
    assert found.x.tolist() == np.array([[1.9, 80.5], [1.4, 50]], np.float32).tolist()
    assert found.y is not None
    assert found.y.tolist() == [1, 0]
    assert (found.sites, found.places.tolist(), found.counted, found.name) == (("east", "west"), [2, 4], "line", "new")
    without = read(run, tmp_path, "weight,height\n80.5,1.9\n50,1.4\n", with_targets=False)
    assert without.x.tolist() == found.x.tolist()
    assert (without.y, without.sites) == (None, ())
    other = read(run, tmp_path, "ward,no,sick,weight,height\nA,1,yes,80.5,1.9\n", "client=ward&label=sick&drop=no")
    assert other.y is not None
    assert (other.y.tolist(), other.sites) == ([1], ("A",))
    # predictions need no classes, whatever stands in their column
    assert read(run, tmp_path, "weight,height,ill\n80.5,1.9,?\n", with_targets=False).x.shape == (1, 2)


HEAD = "height,weight,ill\n"
ROW = f"{HEAD}1.5,60,no\n"


@pytest.mark.parametrize(
    ("text", "said", "message"),
    [
        (
            "height,wieght,ill\n1.5,60,no\n", "",
            r"must have the names 'height', 'weight', in any order, got no 'weight' \(did you mean 'wieght'\?\), "
            r"'wieght' besides in .*new.csv: name columns as in the table that was trained on; leave .*: \?drop=wieght",
        ),
        ("height,ill\n1.5,no\n", "", "got no 'weight' in .*new.csv: name columns as in the table"),
        ("height,weight,age,ill\n1.5,60,4,no\n", "", r"got 'age' besides in .*new.csv: leave out what .*: \?drop=age"),
        ("height,weight\n1.5,60\n", "", r"to evaluate takes the columns 'ill', got none called 'ill': name"),
        (f"{HEAD}1.5,60,maybe\n", "", r"classes of the run are 'no', 'yes', got 'maybe' in"),
        (f"{ROW}1.6,70,\n", "", "'ill' must have a class .*, got a gap in line 3"),
        (f"{HEAD}tall,60,no\n", "", r"'height' must hold numbers, as in the run's table, got 'tall' in line 2"),
        (f"{HEAD}2022-02-09,60,no\n", "", r"got the date '2022-02-09' in line 2.*make the numbers of it that"),
        (
            f"{ROW}1.6,heavy,no\n1.6,60,no\n", "",
            r"'weight' must hold numbers, .*, got 'heavy' in line 3: write numbers, or name words .* \(\?gaps=heavy\)",
        ),
        (f"{ROW},70,yes\n", "", "a number in each .*, got a gap in 'height' in line 3"),
        (f"{HEAD}", "", "the table must have rows, got a header alone: add some"),
        ("", "", "a table must have a header line and rows, got an empty file: write both"),
        (ROW, "client=ward", "the column 'ward' must be there, got 'height'"),
        (ROW, "labl=ill", r"got 'labl=ill' \(did you mean 'label'"),
        (ROW, "prepare=standard", "got 'prepare=standard': how columns are prep"),
        (ROW, "keep=patient", r"columns to keep are there, once, and are no features, got 'patient'"),
        (ROW, "keep=height,ill", "columns to keep are there, once, and are no features, got 'height'"),
        (ROW, "drop=id&drop=x", "each once, some of label, .*, got 'drop=x'"),
    ],
)  # fmt: skip
def test_mistakes_are_said(text: str, said: str, message: str, tmp_path: Path) -> None:
    run = table(tmp_path)
    with pytest.raises((SettingError, ValueError), match=message):
        read(run, tmp_path, text, said)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"there is no file .*nothing\.csv'; give the path of a table with a header"):
        table(tmp_path).read(str(tmp_path / "nothing.csv"), {}, False)


def test_new_rows_are_prepared_by_what_was_fitted(tmp_path: Path) -> None:
    run = table(tmp_path, WORDS, "label=ill&prepare=standard")
    assert run.preparation is not None
    frame = pd.DataFrame({"smokes": ["yes", "often", None], "height": [2.0, np.nan, 1.6]})
    found = read(run, tmp_path, "smokes,height\nyes,2.0\noften,\nNA,1.6\n", with_targets=False)
    np.testing.assert_array_equal(found.x, run.preparation.new_rows(frame))
    assert found.x[:, 1:].tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]  # missing, no, yes
    np.testing.assert_array_equal(run.of_frame(frame, False).x, found.x)
    with pytest.raises(ValueError, match="'height' must hold numbers, as in the run's table, got 'tall' in line 2"):
        read(run, tmp_path, "smokes,height\nyes,tall\n", with_targets=False)
    assert read(run, tmp_path, "smokes,height\nyes,tall\n", "gaps=tall", with_targets=False).x[0, 0] == found.x[1, 0]


def test_numbers_that_are_names_stay_names(tmp_path: Path) -> None:
    text = "height,ward,ill\n1.5,3,no\n1.9,7,yes\n1.7,3,no\n"
    run = table(tmp_path, text, "label=ill&prepare=standard", categories=["ward"])
    found = read(run, tmp_path, "height,ward\n1.5,7\n", with_targets=False)
    assert found.x[0, 1:].tolist() == [0, 1]
    assert run.of_frame(pd.DataFrame({"height": [1.5], "ward": [7]}), False).x.tolist() == found.x.tolist()


@pytest.mark.parametrize("prepare", ["&prepare=standard", ""])
def test_marks_mean_what_they_mean_in_the_runs_table(prepare: str, tmp_path: Path) -> None:
    text = "price,cost,ill\n1.234.567,1.5,no\n2.000,1.7,yes\n3.000,1.9,no\n"
    run = table(tmp_path, text, f"label=ill{prepare}")
    found = read(run, tmp_path, "price,cost\n1.500,1.6\n1500,1.6\n", with_targets=False)
    assert found.x[0].tolist() == found.x[1].tolist()
    with pytest.raises(ValueError, match=r"'price' must hold numbers .* \(1\.234\.567\), got '1\.5'"):
        read(run, tmp_path, "price,cost\n1.5,1.6\n", with_targets=False)


def test_targets_are_numbers(tmp_path: Path) -> None:
    text = "height,weight,days\n1.5,60,1.234.567\n1.8,75,2.000\n1.7,70,3.000\n"
    run = table(tmp_path, text, "target=days")
    found = read(run, tmp_path, "days,height,weight\n1.500,1.6,80\n")
    assert found.y is not None
    assert found.y.tolist() == [1500.0]
    for cells, message in (
        (",1.6,80", "targets must be a number in every row, got 'days' without a value in line 2"),
        ("long,1.6,80", r"'days' must hold numbers as in the run's table \(1\.234\.567\), got 'long'"),
    ):
        with pytest.raises(ValueError, match=message):
            read(run, tmp_path, f"days,height,weight\n{cells}\n")
    two = table(tmp_path, "a,b,x\n1,2,3\n4,5,7\n", "target=a,b")
    both = read(two, tmp_path, "x,b,a\n0,8,9\n").y
    assert both is not None
    assert both.tolist() == [[9, 8]]
    swapped = read(two, tmp_path, "x,b,a\n0,8,9\n", "target=b,a").y
    assert swapped is not None
    assert swapped.tolist() == [[9, 8]]
    with pytest.raises(SettingError, match=r"the run has 2 targets, got 'a' in .*new\.csv: name as many"):
        read(two, tmp_path, "x,a\n0,8\n", "target=a")


def test_rows_without_a_site_are_called_missing(tmp_path: Path) -> None:
    run = table(tmp_path)
    found = read(run, tmp_path, "site,height,weight,ill\n,1.5,60,yes\neast,1.6,61,no\nNA,1.6,61,no\n")
    assert found.sites == ("missing", "east", "missing")
    frame = pd.DataFrame({"site": ["east", None], "height": [1.5, 1.6], "weight": [60, 61]})
    assert run.of_frame(frame, False).sites == ("east", "missing")


def test_columns_that_are_kept_go_through_as_they_are_written(tmp_path: Path) -> None:
    """Also one that the run leaves out, the label and the site; a number keeps its zeros, a gap is empty."""
    run = table(tmp_path)
    text = "id,height,visit,weight,site,ill\n007,1.5,2020-01-02,60,east,?\n,1.6,,61,west,no\n"
    found = read(run, tmp_path, text, "keep=id,visit,ill,site", with_targets=False)
    kept = {"id": ["007", ""], "visit": ["2020-01-02", ""], "ill": ["?", "no"], "site": ["east", "west"]}
    assert {name: [*cells] for name, cells in found.kept.items()} == kept
    assert found.x.tolist() == np.array([[1.5, 60], [1.6, 61]], np.float32).tolist()
    assert found.sites == ("east", "west")
    pd.read_csv(tmp_path / "new.csv", dtype={"id": str}).to_parquet(tmp_path / "new.parquet")
    framed = run.read(str(tmp_path / "new.parquet"), run.arguments("keep=id,visit"), False)
    assert {name: [*cells] for name, cells in framed.kept.items()} == {name: kept[name] for name in ("id", "visit")}
    (tmp_path / "more").mkdir()
    for site in ("b", "a"):
        (tmp_path / "more" / f"{site}.csv").write_text(f"height,weight,id\n1.5,60,{site}1\n1.6,61,{site}2\n")
    assert [*run.read(f"{tmp_path}/more/*.csv", {"keep": "id"}, False).kept["id"]] == ["a1", "a2", "b1", "b2"]


def test_several_files_are_sites_of_which_none_is_lost(tmp_path: Path) -> None:
    run = table(tmp_path)
    (tmp_path / "new").mkdir()
    for site in ("b", "a"):
        (tmp_path / "new" / f"{site}.csv").write_text(f"site,height,weight,ill\n{site},1.5,60,yes\n{site},1.6,61,no\n")
    found = run.read(f"{tmp_path}/new/*.csv", {}, True)
    assert (found.sites, found.places.tolist()) == (("a", "a", "b", "b"), [2, 3, 2, 3])
    assert found.y is not None
    assert found.y.tolist() == [1, 0, 1, 0]
    with pytest.raises(SettingError, match=r"each file of .* is a site, got client=site: leave it out"):
        run.read(f"{tmp_path}/new/*.csv", {"client": "site"}, True)


def test_rows_without_names_are_no_table(tmp_path: Path) -> None:
    train = table(tmp_path).train
    run = RunTable(replace(train, columns=()), "", None)
    with pytest.raises(SettingError, match=r"features have no names, got the table .*: give a \.npz file"):
        read(run, tmp_path, PLAIN)
    with pytest.raises(SettingError, match="features have no names, got a data frame: give an array"):
        run.of_frame(pd.DataFrame({"a": [1.0]}), False)


def test_frames_hold_numbers_and_words(tmp_path: Path) -> None:
    run = table(tmp_path)
    frame = pd.read_csv(tmp_path / "trained.csv")
    found = run.of_frame(frame, True)
    assert found.x.tolist() == run.train.x.tolist()
    assert found.y is not None
    assert found.y.tolist() == run.train.y.tolist()
    assert found.sites == ("north", "south", "north", "south")
    with pytest.raises(ValueError, match="must be as in the run's table, got 'height' with datetime64"):
        run.of_frame(frame.assign(height=pd.Timestamp("2020-01-01")), True)
    with pytest.raises(ValueError, match="the table must have rows"):
        run.of_frame(frame[:0], True)


UNLIKE = {"Kiel": "age,dose,ill\n30,1,no\n50,3,yes\n", "Ulm": "age,ward,ill\n20,east,no\n40,west,yes\n"}


def unlike(folder: Path, columns: str, more: str = "") -> RunTable:
    """The table of a run on two sites with other columns."""
    (folder / "sites").mkdir(exist_ok=True)
    for site, text in UNLIKE.items():
        (folder / "sites" / f"{site}.csv").write_text(text)
    said: dict[str, Any] = {"label": "ill", "prepare": "federated", "columns": columns}
    said |= dict(pair.split("=") for pair in filter(None, more.split("&")))
    train = read_sites(f"{folder}/sites/*.csv", **said, test_fraction=0.0).train
    source = f"{folder}/sites/*.csv?label=ill&prepare=federated&columns={columns}&{more}"
    return RunTable(train, source, train.preparation)


def test_tables_lack_what_some_site_lacked_and_nothing_else(tmp_path: Path) -> None:
    run = unlike(tmp_path, "union")
    assert run.train.columns == ("age", "dose", "dose_missing", "ward_east", "ward_missing", "ward_west")
    assert read(run, tmp_path, "age\n35\n", with_targets=False).x.tolist() == [[0, 0, 1, 0, 1, 0]]
    of_frame = run.of_frame(pd.DataFrame({"age": [35]}), False)
    assert of_frame.x.tolist() == [[0, 0, 1, 0, 1, 0]]
    with pytest.raises(
        SettingError, match=r"got no 'age' in .*new\.csv: name columns as in the table that was trained"
    ):
        read(run, tmp_path, "dose\n1\n", with_targets=False)
    with pytest.raises(SettingError, match="'bmi' besides"):
        read(run, tmp_path, "age,bmi\n35,20\n", with_targets=False)


def test_tables_of_shared_columns_may_have_others(tmp_path: Path) -> None:
    run = unlike(tmp_path, "shared")
    assert read(run, tmp_path, "bmi,age,ill\n20,35,yes\n").x.tolist() == [[0]]


def test_new_rows_are_read_by_the_runs_dictionary(tmp_path: Path) -> None:
    lines = (
        "[columns.age]", "unit = 'years'", "units = { months = 0.1 }",
        "[columns.ill]", "categories = { yes = ['ja'], no = [] }",
        "[columns.ward]", "categories = { east = ['Ost'], west = [] }",
        "[sites.new]", "age = { column = 'Alter', unit = 'months' }", "ward = { column = 'Haus' }",
        "[sites.Kiel]", "[sites.Ulm]",
    )  # fmt: skip
    (tmp_path / "d.toml").write_text("\n".join(lines))
    with pytest.warns(UserWarning, match="got no file of new among Kiel, Ulm"):
        run = unlike(tmp_path, "union", f"dictionary={tmp_path}/d.toml")
    found = read(run, tmp_path, "Alter,Haus,ill\n350,Ost,ja\n")
    assert found.y is not None
    assert (found.x.tolist(), found.y.tolist()) == ([[0, 0, 1, 1, 0, 0]], [1])
    assert read(run, tmp_path, "Alter\n350\n", with_targets=False).x.tolist() == [[0, 0, 1, 0, 1, 0]]
    assert read(run, tmp_path, "age\n35\n", "site=Ulm", with_targets=False).x[0, 0] == 0
    with pytest.raises(ValueError, match=r"words of 'ward' must be in .*, got 'Nord' in line 2"):
        read(run, tmp_path, "Alter,Haus\n350,Nord\n", with_targets=False)
