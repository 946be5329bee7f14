"""Tables of several sites: the same data as one table, and all differences in one message."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.data import Dataset, Examples, federate, natural
from fedloom.tables import read_csv, read_sites
from hospitals import SIZES, Change, Row, write_hospitals, write_table, write_whole


def same(one: Examples | None, other: Examples | None) -> None:
    assert one is not None
    assert other is not None
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    for name in ("num_classes", "columns", "classes", "owners", "targets"):
        assert getattr(one, name) == getattr(other, name), name
    assert (one.groups is None) == (other.groups is None)
    if one.groups is not None:
        np.testing.assert_array_equal(one.groups, other.groups)


def same_data(one: Dataset, other: Dataset) -> None:
    same(one.train, other.train)
    same(one.test, other.test)
    np.testing.assert_array_equal(one.owners, other.owners)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"label": "readmitted", "drop": ["patient", "los_days"], "prepare": "standard"},
        {"target": "los_days", "drop": ["readmitted"], "group": "patient", "prepare": "standard"},
        {"target": ["los_days", "creatinine"], "drop": ["patient", "readmitted", "sex", "diagnosis"]},
    ],
)
def test_files_of_sites_are_one_table_with_a_column_of_clients(tmp_path: Path, arguments: dict[str, Any]) -> None:
    has_gaps = "prepare" in arguments
    made = write_hospitals(tmp_path / "sites", change={} if has_gaps else dict.fromkeys(SIZES, _fill))
    one = read_sites(str(tmp_path / "sites/*.csv"), **arguments)
    other = read_csv(write_whole(tmp_path / "whole.csv", made), client="client", **arguments)
    same_data(one, other)
    assert one.train.owners == ("Bremen", "Hamburg", "Kiel", "Luebeck", "Rostock")
    assert one.train.name == "sites"
    federations = [federate(d.train, natural(d.owners, d.train.owners), test=d.test) for d in (one, other)]
    assert federations[0].fingerprint() == federations[1].fingerprint()
    assert federations[0].partition.clients == one.train.owners


def _fill(rows: list[Row]) -> None:
    for row in rows:
        row |= {column: "1.5" for column in ("age", "creatinine") if row[column] in ("", "NA")}


def test_files_may_be_a_list_in_any_order_with_marks_of_their_own(tmp_path: Path) -> None:
    write_table(tmp_path / "b.csv", [{"x": "0,5", "label": "no"}, {"x": "3,25", "label": "yes"}], separator=";")
    write_table(tmp_path / "a.csv", [{"label": "no", "x": "1.5"}, {"label": "yes", "x": "2.5"}])
    for files in ([tmp_path / "b.csv", tmp_path / "a.csv"], f"{tmp_path}/b.csv,{tmp_path}/a.csv"):
        train, test, owners, _ = read_sites(files, test_fraction=0)
        assert test is None
        assert (train.x[:, 0].tolist(), train.owners) == ([1.5, 2.5, 0.5, 3.25], ("a", "b"))
        assert owners is not None
        assert owners.tolist() == [0, 0, 1, 1]


def test_marks_that_part_thousands_are_told_by_all_files_together(tmp_path: Path) -> None:
    """1.234 alone is a little more than 1; beside 66.981,87 of another site it is not."""
    write_table(tmp_path / "a.csv", [{"x": "66.981,87", "label": "0"}, {"x": "2", "label": "1"}])
    write_table(tmp_path / "b.csv", [{"x": "1.234", "label": "0"}, {"x": "3", "label": "1"}])
    train = read_sites(str(tmp_path / "*.csv"), test_fraction=0).train
    assert train.x[:, 0].tolist() == [np.float32(66981.87), 2, 1234, 3]


def test_files_of_one_name_are_called_by_their_folders(tmp_path: Path) -> None:
    for site in ("Kiel", "Bremen"):
        (tmp_path / site).mkdir()
        write_table(tmp_path / site / "visits.csv", [{"x": "1", "label": "0"}, {"x": "2", "label": "1"}])
    assert read_sites(str(tmp_path / "*/visits.csv"), test_fraction=0).train.owners == ("Bremen", "Kiel")
    write_table(tmp_path / "Kiel" / "other.csv", [{"x": "1", "label": "0"}])
    named = read_sites(str(tmp_path / "*/*.csv"), test_fraction=0).train.owners
    assert named == ("Bremen/visits", "Kiel/other", "Kiel/visits")


def test_no_two_sites_have_one_name(tmp_path: Path) -> None:
    """Of files kiel.csv and kiel.tsv the rows of one were there twice, and those of the other nowhere."""
    for file, x in (("kiel.csv", 1), ("kiel.tsv", 2), ("lueb.csv", 3), ("kiel/kiel.csv", 4), ("lueb/kiel.csv", 5)):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(f"x,label\n{x},0\n{x},1\n")

    def read(*files: str) -> tuple[tuple[str, ...], list[float]]:
        train = read_sites([tmp_path / file for file in files], test_fraction=0).train
        return train.owners, train.x[:, 0].tolist()

    assert read("kiel.csv", "kiel.tsv", "lueb.csv") == (("kiel.csv", "kiel.tsv", "lueb.csv"), [1, 1, 2, 2, 3, 3])
    assert read("kiel.csv", "kiel.tsv") == (("kiel.csv", "kiel.tsv"), [1, 1, 2, 2])
    assert read("kiel.csv", "lueb/kiel.csv") == (("kiel", "lueb"), [1, 1, 5, 5])
    assert read("kiel.csv", "kiel/kiel.csv") == (("kiel/kiel", "kiel"), [4, 4, 1, 1])
    assert read("kiel.csv", "kiel.tsv", "kiel/kiel.csv")[0] == ("kiel/kiel.csv", "kiel.csv", "kiel.tsv")


def test_names_of_sites_stand_below_what_relative_and_whole_paths_have_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text("x,label\n1,0\n1,1\n")
    assert read_sites([Path("a/x.csv"), tmp_path / "b" / "x.csv"], test_fraction=0).train.owners == ("b", "a")


def test_a_site_without_rows_is_warned_of(tmp_path: Path) -> None:
    for name, rows in (("a", "1,0\n2,1\n"), ("b", ""), ("c", "3,1\n4,0\n")):
        (tmp_path / f"{name}.csv").write_text(f"x,label\n{rows}")
    with pytest.warns(UserWarning, match="a site must have rows to be a client, got a header alone in b: leave such"):
        assert read_sites(str(tmp_path / "*.csv"), test_fraction=0).train.owners == ("a", "c")


def test_a_site_may_be_called_as_a_gap_is(tmp_path: Path) -> None:
    for name in ("NA", "DE"):
        (tmp_path / f"{name}.csv").write_text("x,label\n1,0\n2,1\n")
    assert read_sites(str(tmp_path / "*.csv"), test_fraction=0).train.owners == ("DE", "NA")


def test_a_file_is_one_site(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,label\n1,0\n1,1\n")
    (tmp_path / "sub").mkdir()
    for files in (f"{tmp_path}/a.csv,{tmp_path}/sub/../a.csv", f"{tmp_path}/a.csv,{tmp_path}/a.csv"):
        with pytest.raises(ValueError, match=r"must be different files, got .*/a\.csv twice for '.*': name each"):
            read_sites(files)
    assert read_sites(f"{tmp_path}/**/**/*.csv", test_fraction=0).train.owners == ("a", "b")


def test_columns_that_are_dropped_need_not_be_everywhere(tmp_path: Path) -> None:
    def more(rows: list[Row]) -> None:
        for row in rows:
            row["ward"] = "7"

    write_hospitals(tmp_path / "s", change={"Kiel": more})
    data = read_sites(
        str(tmp_path / "s/*.csv"), label="readmitted", drop=["patient", "los_days", "ward"], prepare="standard"
    )
    assert "ward" not in data.train.columns
    with pytest.raises(ValueError, match=r"'ward' besides in Kiel: .* leave out those that not all have .drop=ward"):
        read_sites(str(tmp_path / "s/*.csv"), label="readmitted", drop=["patient", "los_days"], prepare="standard")


def test_classes_and_columns_of_sites_are_compared_without_case_width_and_signs_without_width(tmp_path: Path) -> None:
    for i, (column, label) in enumerate([("age", "yes"), ("age", "yes"), ("ａge", "ye\u200bs")]):
        (tmp_path / f"{i}.csv").write_text(f"{column},b,y\n1,2,{label}\n2,3,no\n", encoding="utf-8")
    with pytest.raises(
        ValueError,
        match=r"no 'age' \(did you mean 'ａge'\?\), 'ａge' besides in 2;.*'ye\\u200bs' in 2 and 'no', 'y",
    ):
        read_sites(str(tmp_path / "*.csv"), label="y")


def test_all_differences_stand_in_one_message(tmp_path: Path) -> None:
    def other(rows: list[Row]) -> None:
        for row in rows:
            row["Sex"] = row.pop("sex")
            row["creatinine"] = "high"
            row["readmitted"] = {"yes": "ja", "no": "nein"}[row["readmitted"]]
            row["bmi"] = "22"
            del row["age"]

    write_hospitals(tmp_path / "s", change={"Kiel": other})
    with pytest.raises(ValueError, match="sites must have the same columns, written alike") as error:
        read_sites(str(tmp_path / "s/*.csv"), label="readmitted", drop=["patient", "los_days"], prepare="standard")
    for said in (
        "got no 'age', no 'sex' (did you mean 'Sex'?), 'Sex', 'bmi' besides in Kiel; ",
        "'creatinine' with numbers in Bremen, Hamburg, Luebeck, Rostock (",
        ") and words in Kiel ('high')",
        "'readmitted' is 'ja', 'nein' in Kiel and 'no', 'yes' elsewhere",
        "spell classes alike",
        "(drop=age,sex,Sex,bmi)",
    ):
        assert said in str(error.value), said


def test_numbers_of_another_unit_are_noted(tmp_path: Path) -> None:
    """Creatinine of one hospital in umol/l, 88.4 times that in mg/dl of the others."""

    def other_unit(rows: list[Row]) -> None:
        for row in rows:
            row["creatinine"] = f"{88.4 * float(row['creatinine']):.0f}" if row["creatinine"] not in ("", "NA") else ""

    def larger(rows: list[Row]) -> None:
        for row in rows:
            row["creatinine"] = f"{2 * float(row['creatinine']):.2f}" if row["creatinine"] not in ("", "NA") else ""

    arguments: dict[str, Any] = {"label": "readmitted", "drop": ["patient", "los_days"], "prepare": "standard"}
    write_hospitals(tmp_path / "s", change={"Kiel": other_unit})
    with pytest.warns(UserWarning, match=r"'creatinine' is about \d+ in Kiel and \d\.?\d* elsewhere, .* in one unit"):
        read_sites(str(tmp_path / "s/*.csv"), **arguments)
    write_hospitals(tmp_path / "t", change={"Kiel": larger})  # other patients, maybe
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_sites(str(tmp_path / "t/*.csv"), **arguments)


def _rename(old: str, new: str) -> Change:
    def change(rows: list[Row]) -> None:
        for row in rows:
            row[new] = row.pop(old)

    return change


def _set(column: str, *cells: str) -> Change:
    def change(rows: list[Row]) -> None:
        for row, cell in zip(rows, cells or ("",) * len(rows), strict=False):
            row[column] = cell

    return change


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (
            {"Kiel": _rename("readmitted", "Readmitted")},
            {},
            r"no 'readmitted' .did you mean 'Readmitted'\?., .* in Kiel",
        ),
        ({}, {"label": "outcome"}, "no site has 'outcome'"),
        ({}, {"drop": ["wards"]}, "no site has 'wards'"),
        ({"Kiel": _set("readmitted", "Yes", "No")}, {}, "'readmitted' is 'No', 'Yes', 'no', 'yes' in Kiel and 'no', "),
        ({"Kiel": _set("age", *["old"] * 24)}, {}, "'age' with numbers in Bremen, .* and words in Kiel .'old'."),
        ({"Kiel": _set("age", "unknown")}, {}, "'age' with 'unknown' in line 2 of Kiel.csv"),
        (
            {"Kiel": _set("patient", "", "")},
            {"group": "patient"},
            "'patient' must .* '' in line 2 of Kiel.csv and 1",
        ),
        ({}, {"label": None, "target": "los_days", "group": "los_days"}, "has one role, got 'los_days'"),
        ({}, {"target": "los_days"}, "got label=readmitted and target=los_days: leave one of them"),
        (
            {"Bremen": _set("los_days", "3 days")},
            {"target": "los_days", "label": None},
            "got 'los_days' with the unit of '3 days' in line 2 of Bremen.csv: write the unit 'days' into the name",
        ),
    ],
)
def test_mistakes(tmp_path: Path, change: dict[str, Change], arguments: dict[str, Any], message: str) -> None:
    write_hospitals(tmp_path / "s", change=change)
    given = {"label": "readmitted", "prepare": "standard"} | arguments
    named = {given["label"], given.get("target"), given.get("group")}
    given["drop"] = [*arguments.get("drop", []), *({"patient", "los_days", "readmitted"} - named)]
    with pytest.raises(ValueError, match=message):
        read_sites(str(tmp_path / "s/*.csv"), **given)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("none/*.csv", "must be two files or more, got none for '.*none/.*.csv'"),
        ("K*.csv", "must be two files or more, got .*Kiel.csv alone"),
        (["Kiel.csv", "Berlin.csv"], "must have a file, got none at .*Berlin.csv"),
        (["Kiel.csv", "notes.txt"], "must end in .csv, .tsv, .parquet, got .*notes.txt"),
        (["Kiel.csv", "a.parquet"], "all text or all Parquet, got both"),
    ],
)
def test_files_that_are_no_sites(tmp_path: Path, files: str | list[str], message: str) -> None:
    write_hospitals(tmp_path)
    for name in ("notes.txt", "a.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=message):
        read_sites(str(tmp_path / files) if isinstance(files, str) else [tmp_path / name for name in files])


def test_a_class_of_one_site_beside_those_of_all_is_warned_of(tmp_path: Path) -> None:
    """A rare disease is no misspelling; so are class numbers, and a site of one class."""
    write_table(tmp_path / "a.csv", [{"x": "1", "label": "flu"}, {"x": "2", "label": "plague"}])
    write_table(tmp_path / "b.csv", [{"x": "1", "label": "flu"}, {"x": "2", "label": "cold"}])
    with pytest.warns(UserWarning, match="only a has the class 'plague'; only b has the class 'cold'"):
        assert read_sites(str(tmp_path / "*.csv"), test_fraction=0).train.classes == ("cold", "flu", "plague")
    for labels in ("01", "23"):
        rows = [{"x": str(k), "label": label} for k, label in enumerate(labels)]
        write_table(tmp_path / f"{'ab'[labels == '23']}.csv", rows)
    with pytest.warns(UserWarning, match="only a has the class '0', '1'; only b has the class '2', '3'"):
        assert read_sites(str(tmp_path / "*.csv"), test_fraction=0).train.num_classes == 4


def test_words_that_no_other_site_has_are_warned_of(tmp_path: Path) -> None:
    def german(rows: list[Row]) -> None:
        for row in rows:
            row["sex"] = {"f": "w", "m": "männlich"}.get(row["sex"], "")

    write_hospitals(tmp_path / "s", change={"Kiel": german})
    with pytest.warns(UserWarning, match=re.escape("'sex' is 'männlich', 'w' in Kiel and 'f', 'm' elsewhere")):
        read_sites(str(tmp_path / "s/*.csv"), label="readmitted", drop=["patient", "los_days"], prepare="standard")
