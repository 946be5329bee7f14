"""Tables: columns by name, classes in order, natural clients, test rows, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedloom.experiments import catalogue
from fedloom.tables import columns, from_frame, read_csv
from fedloom.tables.roles import Roles, first_repeated
from fedloom.tables.table_words import TableWords


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_bytes((end.join(lines) + end).encode())
    return path


def test_features_classes_and_split(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "\ufeffa,kind, b ,part",
        "1,10,-2.5,train",
        "",
        '"3",9,1e2,test',
        "5,7,6,train",
        "7,7,8,train",
        end="\r\n",
    )
    train, test, owners, held_out = read_csv(path, label="kind", split="part")
    assert test is not None
    assert (train.x.tolist(), test.x.tolist()) == ([[1, -2.5], [5, 6], [7, 8]], [[3, 100]])
    assert (train.y.tolist(), test.y.tolist(), train.num_classes, test.num_classes) == ([2, 0, 0], [1], 3, 3)
    assert (train.x.dtype, train.name, owners, held_out) == (torch.float32, "t", None, None)
    assert train.columns == test.columns == ("a", "b")


@pytest.mark.parametrize(
    "other",
    ["Yes", "YES", "ye\u200bs", "ｙｅｓ", "\u00a0yes", "y e s"],
    ids=["title", "upper", "no-width", "wide", "nbsp", "3"],
)
def test_one_class_in_two_spellings_is_warned_of(tmp_path: Path, other: str) -> None:
    path = write(tmp_path / "t.csv", "x,label", "1,yes", "2,no", f"3,{other}")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = read_csv(path, test_fraction=0).train
    if other.strip() in ("yes", "y e s"):  # the same once its spaces are gone; another word
        assert (found.num_classes, seen) == (2 + (other == "y e s"), [])
        return
    told = (
        f"{path}: one word has one spelling, got {' and '.join(map(repr, sorted(['yes', other])))} in 'label', each of "
    )
    assert [str(one.message)[: len(told)] for one in seen] == [told]
    assert found.num_classes == 3


def test_clients_groups_and_categories_in_two_spellings_are_warned_of(tmp_path: Path) -> None:
    rows = ["Kiel,p1,m,1,a", "kiel,P1,M,2,A", "Bonn,p2,m,3,NA", "Bonn,p2,f,4,na"]
    path = write(tmp_path / "t.csv", "site,patient,sex,x,y", *rows[:3])
    given: dict[str, Any] = {"client": "site", "group": "patient", "prepare": "standard", "test_fraction": 0}
    told = "got 'Kiel' and 'kiel' in 'site'; 'P1' and 'p1' in 'patient'; 'M' and 'm' in 'sex', each of which counts"
    with pytest.warns(UserWarning, match=told):
        read_csv(path, label="x", drop=["y"], **given)
    with pytest.warns(UserWarning, match="got 'A' and 'a' in 'y', each"):
        from_frame(pd.DataFrame({"x": [1.0, 2.0], "y": ["a", "A"]}), label="y", test_fraction=0)
    twice = ["é", "e\u0301"]
    with pytest.warns(UserWarning, match=r"got 'e\\u0301' and '\\xe9' in 'y', each"):
        from_frame(pd.DataFrame({"x": [1.0, 2.0], "y": twice}), label="y", test_fraction=0)


def test_integers_may_have_leading_zeros_if_all_are_spelt_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,label", "1,10", "2,02", "3,01", "4,02")
    assert read_csv(path, test_fraction=0).train.y.tolist() == [2, 1, 0, 1]


def test_a_fifth_of_every_class_is_the_test_set(tmp_path: Path) -> None:
    rows = [f"{i},{'cat' if i % 4 else 'ant'}" for i in range(100)]
    path = write(tmp_path / "t.csv", "x,label", *rows)
    train, test, _, _ = read_csv(path)
    assert test is not None
    assert (train.class_counts().tolist(), test.class_counts().tolist()) == ([20, 60], [5, 15])
    assert sorted([*train.x[:, 0].tolist(), *test.x[:, 0].tolist()]) == list(range(100))
    assert train.x[:, 0].tolist() == sorted(train.x[:, 0].tolist())
    assert test.x.tolist() == read_csv(path).test.x.tolist()  # type: ignore[union-attr]
    assert test.x.tolist() != read_csv(path, seed=1).test.x.tolist()  # type: ignore[union-attr]
    assert read_csv(path, test_fraction=0).test is None


def test_natural_clients(tmp_path: Path) -> None:
    rows = ["1,a,u2,train", "2,b,u1,train", "3,a,u2,test", "4,b,u3,test"]
    path = write(tmp_path / "t.csv", "x,label,user,part", *rows)
    train, test, owners, held_out = read_csv(path, client="user", split="part")
    assert test is not None
    assert owners is not None
    assert held_out is not None
    assert (train.y.tolist(), test.x[:, 0].tolist()) == ([0, 1, 0, 1], [3, 4])
    assert (owners.tolist(), held_out.tolist()) == ([0, 1, 0, 2], [False, False, True, True])
    path = write(tmp_path / "t.csv", "x,label,user", *(f"{i},{i % 2},{'vwz'[i % 3]}" for i in range(30)))
    train, test, owners, held_out = read_csv(path, client="user")
    assert test is not None
    assert owners is not None
    assert (len(train), len(test), held_out) == (24, 6, None)
    np.testing.assert_array_equal(owners, train.x[:, 0].numpy() % 3)


@pytest.mark.parametrize(
    ("lines", "arguments", "message"),
    [
        ([""], {}, "there is no column 'label', got nothing: say which one is the label"),
        (["x,y", "1,2"], {}, r"there is no column 'label', got x, y: say which one is the label \(label=NAME\)"),
        (["label", "1"], {}, "must have a column of features, got label: drop fewer"),
        (["x,x,label", "1,2,3"], {}, "columns must have distinct names, got 'x' twice: rename one"),
        ([",x,label", "0,1,2"], {}, "must have names, got none in place 1: name it .* pandas writes row numbers so"),
        (["x,label,", "1,2,"], {"prepare": "standard"}, "must have names, got none in place 3"),
        (["x,label", "1,2"], {"client": "user"}, "there is no column 'user', got x, label: name columns as the first"),
        (
            ["ID,Outcome,x", "1,2,3"],
            {"label": "outcome", "drop": ["id", "Foo"]},
            r"no column 'outcome' \(did you mean 'Outcome'\?\), 'id' \(did you mean 'ID'\?\), 'Foo', got ID, Outcome,",
        ),
        (["x,label"], {}, "must have rows, got a header alone"),
        (["x,label", "1,2", "1,2,3"], {}, "line 3 must have 2 cells, got 3: quote"),
        (
            ["x,label", "1,2", "a b,3"],
            {},
            "must be numbers, got 'x' with 'a b' in line 3: mend them, or leave them out: drop=x",
        ),
        (["x,label", "1_000,3"], {}, "'x' with '1_000' in line 2: prepare them"),
        (["x,label", "\uff11,3"], {}, "'x' with '\uff11' in line 2"),
        (["x,label", "1,01", "2,1"], {}, "an integer in 'label' must have one spelling, got 01 and 1: write it alike"),
        (["x,label", "1,1", "2,+1"], {}, r"one spelling, got \+1 and 1"),
        (["x,label", "1,1", "2,01", "3,a"], {}, "one spelling, got 01 and 1"),
        (["x,label", "1,1_0", "2,3"], {}, "labels in 'label' must be integers or names, got '1_0'"),
        (["x,label", ",3"], {}, "must be numbers, got 'x' with nothing"),
        (
            ["x,z,label", "1,2,3", "1,nan,3"],
            {},
            r"'z' with 1 missing, first in line 3: prepare them \(prepare=standard",
        ),
        (["x,label", "1e60,3"], {}, r"'x' with 1e\+60 in line 2, too large for float32"),
        (["x,label", "1,0.5"], {}, "labels in 'label' must be integers or names, got '0.5'"),
        (["x,label", "1,inf", "2,3"], {}, "labels in 'label' must be integers or names, got 'inf'"),
        (
            ["x,label", "1,a", "2,"],
            {},
            "'label' must have a value in every row, got '' in line 3, which means a gap: fill it in, leave the row "
            "out, or rename",
        ),
        (["x,label", "1,a", "2,nan"], {}, "in every row, got 'nan' in line 3, which"),
        (["x,label", "1,NA", "2,a", "3,N/A"], {}, "in every row, got 'NA' in line 2 and 1 more, which"),
        (["x,label", "1,0", "2,?"], {}, r"got '\?' in line 3"),
        (["x,label", "1,no", "2,null"], {}, "got 'null' in line 3"),
        (
            ["x,label", "1,no", "", "2,k.A."],
            {"gaps": ["k.A."]},
            "'label' must have a value in every row, got '' in line 4",
        ),
        (["x,label,who", "1,0,", "2,1,u"], {"client": "who"}, "'who' must have a value in every row, got '' in line 2"),
        (["x,label,who", "1,0,u", "2,1,?"], {"client": "who"}, r"'who' .*, got '\?' in line 3, which means a gap"),
        (["x,label,part", "1,2,valid"], {"split": "part"}, "'part' must say train or test, got 'valid'"),
        (["x,label,part", "1,2,test"], {"split": "part"}, "must say train for some rows, got test for all"),
        (["x,label", '"1,2'], {}, "must be a table as text, got unexpected end of data"),
        (["x,label", '1,"' + "a" * 200_000], {}, "must be a table as text, got unexpected end of data"),
        (["x,label", "1,2"], {"test_fraction": 1.0}, r"test_fraction must be in \[0, 1\), got 1.0"),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: list[str], arguments: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "t.csv", *lines)
    with pytest.raises(ValueError, match=message):
        read_csv(path, **arguments)


def test_a_column_without_a_value_is_warned_of_where_other_clients_decide_on_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,z,w,label\n,1,,0\n,2,?,1\n")
    with pytest.warns(UserWarning, match=r"t.csv: 'x', 'w' with nothing here, which the other rows fill"):
        made = read_csv(path, prepare="federated", test_fraction=0).train
    assert made.columns == ("x", "z", "w")
    assert made.x.tolist() == [[0, -1, 0], [0, 1, 0]]
    with pytest.raises(ValueError, match="'x' with nothing; 'w' with nothing"):
        read_csv(path, prepare="standard", test_fraction=0)


def test_a_column_without_a_name_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ",x,label", "0,5,a", "1,6,b")
    assert read_csv(path, drop=[""], test_fraction=0).train.x.tolist() == [[5], [6]]


def zipped(text: bytes) -> bytes:
    with zipfile.ZipFile(made := io.BytesIO(), "w") as archive:
        archive.writestr("t.csv", text)
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "packed", "told"),
    [
        (
            "t.csv.gz",
            gzip.compress,
            "a file that is compressed by gzip: read it with pandas .* and gunzip t.csv.gz for",
        ),
        ("t.csv.bz2", bz2.compress, "compressed by bzip2: .* bunzip2 t.csv.bz2"),
        ("t.csv.xz", lzma.compress, "compressed by xz: .* unxz t.csv.xz"),
        ("t.csv.zst", lambda text: b"\x28\xb5\x2f\xfd" + text, "compressed by zstd: .* unzstd t.csv.zst"),
        (
            "t.csv.zip",
            zipped,
            "a zip archive, which an Excel workbook is too: .* unzip t.csv.zip, or save the workbook",
        ),
        ("t.xls", lambda text: b"\xd0\xcf\x11\xe0" + text, "an Excel workbook: .* save it as CSV"),
        ("t.pq", lambda text: b"PAR1" + text, "that is Parquet: .* name it t.pq.parquet"),
    ],
)
def test_a_file_of_another_kind_is_told_as_what_it_is(name: str, packed: Any, told: str, tmp_path: Path) -> None:
    """Also where its name says that it is text, and where the command line is given it, alone or by a pattern."""
    for place in (tmp_path / name, tmp_path / "plain.csv"):
        place.write_bytes(packed(b"x,label\n1,0\n2,1\n" * 9))
    with pytest.raises(ValueError, match=f"must be a table as text, got .*{told}"):
        read_csv(tmp_path / name)
    with pytest.raises(
        ValueError,
        match=f"must be a table as text, got .*{told}".replace(name, "plain.csv").replace("t.pq", "plain.csv"),
    ):
        read_csv(tmp_path / "plain.csv")
    (tmp_path / "plain.csv").unlink()
    for source in (f"{tmp_path}/{name}?label=y", f"{tmp_path}/*.*", f"{tmp_path}/{name}"):
        with pytest.raises(
            ValueError, match=f"tables and arrays end in .csv, .tsv, .parquet, .npz, .npy, got .*{told}"
        ):
            catalogue.data(source)


def test_a_file_with_another_end_is_to_be_renamed(tmp_path: Path) -> None:
    write(tmp_path / "t.txt", "x,label", "1,0", "2,1")
    with pytest.raises(ValueError, match=r"got '.*t.txt\?label=y': rename a table as text to t.csv, or read it in Py"):
        catalogue.data(f"{tmp_path}/t.txt?label=y")


@pytest.mark.parametrize(
    "lines", [["5.1,3.5,0", "4.9,3.0,1"], ["0,0,7", "1,2,3"], ["5.1,5.1,setosa", "1,2,x"], ["7,3,1", "8,4,0"]]
)
def test_a_table_without_a_line_of_names_is_told_as_such(lines: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", *lines)
    with pytest.raises(ValueError, match=r"data in line 1"):
        read_csv(path)


def test_names_of_columns_may_be_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "0,1,10,label", "1,2,3,0", "1,2,3,1")
    assert read_csv(path, test_fraction=0).train.columns == ("0", "1", "10")
    with pytest.raises(ValueError, match="there is no column 'y', got 0, 1, 10, label: name"):
        read_csv(path, label="y")
    path = write(tmp_path / "t.csv", "1,1,label", "1,2,0")
    with pytest.raises(
        ValueError, match=r"the first line must name the columns, got data in line 1, '1, 1, label': wr"
    ):
        read_csv(path)
    path = write(tmp_path / "t.csv", "a,a,label", "1,2,0")
    with pytest.raises(ValueError, match="columns must have distinct names, got 'a' twice"):
        read_csv(path)


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, message in ((b"x,label\n1,\0\n", "got a character 0"), (b"x,label\n\x8f,1\n", "UTF-8, UTF-16 or")):
        (tmp_path / "t.csv").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_csv(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=r"there is no file .*none\.csv"):
        read_csv(tmp_path / "none.csv")
    monkeypatch.setattr("fedloom.tables.file_checks.LIMIT", 5)
    with pytest.raises(ValueError, match=r"must be at most 5 bytes, got 12: use a \.npz file"):
        read_csv(tmp_path / "t.csv")


def test_dates_are_no_words_however_many_rows_have_each(tmp_path: Path) -> None:
    rows = [f"{i % 21 + 1:02}.03.2021,{i},{i % 2}" for i in range(160)]
    path = write(tmp_path / "t.csv", "day,x,label", *rows)
    with pytest.raises(
        ValueError, match=r"'day' with 21 different dates such as '01\.03\.2021', more than 20: make num"
    ):
        read_csv(path, prepare="standard")
    few = write(tmp_path / "few.csv", "day,x,label", *(row for row in rows if not row.startswith("21")))
    assert len(read_csv(few, prepare="standard").train.columns) == 21


def test_columns_are_told_apart_in_linear_time(tmp_path: Path) -> None:
    """Tables of genes have 20,000 columns, and each of them is compared with all."""
    names = [f"g{i}" for i in range(20_000)]
    path = tmp_path / "genes.csv"
    path.write_text(",".join(["label", *names]) + "\n")
    start = time.process_time()
    columns.check_header(path, ["label", *names], ["label"], names)
    assert Roles.of(TableWords(drop=names)).drop == tuple(names)
    assert time.process_time() - start < 1.0
    assert first_repeated([*names, "g7", "g3"]) == "g3"
