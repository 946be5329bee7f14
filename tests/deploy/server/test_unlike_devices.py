"""Devices whose tables differ in their columns: what all or any have, with the bits of a simulation."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedloom.coordinator.verification import verify
from fedloom.core.errors import RefusedError, SettingError
from fedloom.deploy.device_statistics import CommonTotals, FirstStatistics, read_preparation
from fedloom.deploy.server.device_registry import Registry
from fedloom.deploy.server.statistics_exchange import aligned
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.predictions import predict
from fedloom.tables.statistics import CommonPreparation, Scale, Summary, Total
from fedloom.testing.compare import same
from fedloom.testing.in_process import InProcess
from hospitals import SIZES, Row, write_hospitals, write_table
from site_devices import audit, check_same_run, members_of, serve, settings

HOW = "target=los_days&drop=readmitted,patient"
COLUMNS = ["age", "creatinine", "sex", "diagnosis", "bmi", "los_days", "readmitted", "patient", "part"]


def write(folder: Path) -> None:
    """Bremen has no creatinine, Kiel no sex, and Rostock alone a body mass index."""

    def change(site: str, rows: list[Row]) -> None:
        rng = np.random.default_rng(len(rows))
        for row in rows:
            row["part"] = str(rng.choice(["test", "train", "train"]))
            row |= {"bmi": f"{rng.normal(25, 4):.1f}"} if site == "Rostock" else {}
            row.pop({"Bremen": "creatinine", "Kiel": "sex"}.get(site, ""), None)

    made = write_hospitals(folder / "sites", change={s: lambda rows, s=s: change(s, rows) for s in SIZES})  # type: ignore[misc]
    tested = [row for rows in made.values() for row in rows if row["part"] == "test"]
    write_table(folder / "test.csv", tested, COLUMNS)


def source(folder: Path, site: str, how: str) -> str:
    return f"{folder}/sites/{site}.csv?{HOW}&split=part&prepare=federated{how}"


def devices(folder: Path, how: str) -> list[Any]:
    return [*members_of(folder, [source(folder, site, how) for site in SIZES])]


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["&columns=union", "&columns=shared", "&columns=union&least_clients=2"])
def test_devices_have_the_columns_and_the_bits_of_the_simulation(how: str, tmp_path: Path) -> None:
    write(tmp_path)
    words = settings("fedavg", **{"run.rounds": 2})
    alone = {"run.engine": "loop", "run.threads": 1, "data.source": source(tmp_path, "*", how)}
    want = Experiment().with_all(words | alone).job().run(tmp_path / "simulated")
    test = f"{tmp_path}/test.csv?{HOW},part&prepare=federated"
    got = serve(tmp_path, words, InProcess(devices(tmp_path, how)), test).run(tmp_path / "out")
    same(want.server, got.server, "the server state")
    check_same_run(tmp_path / "out", tmp_path / "simulated", exactly=False)
    made = Registry.read(tmp_path / "devices.json").read_preparation()
    assert ("bmi" in made.numbers) == ("union" in how)  # type: ignore[union-attr]
    assert verify(tmp_path / "out").whole
    new = tmp_path / "new.csv"
    new.write_text("age,diagnosis,ward\n50,I10,7\n" if "shared" in how else "age,diagnosis\n50,I10\n")
    assert predict(tmp_path / "out", new).values.shape == (1, 1)


def test_who_comes_later_moves_no_column(tmp_path: Path) -> None:
    """A device may lack what some lacked when the run began, and is told what else differs."""
    write(tmp_path)
    words = settings("fedper", **{"run.rounds": 2})
    first = {site: source(tmp_path, site, "&columns=union") for site in ("Bremen", "Kiel", "Rostock")}

    def stop(record: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path, words, InProcess([*members_of(tmp_path, [*first.values()])]), "").run(
            tmp_path / "out", on_round=stop
        )
    before = Registry.read(tmp_path / "devices.json").preparation
    assert before is not None
    assert sorted(before["lacking"]) == ["bmi", "creatinine", "sex"]
    head, rows = "los_days,readmitted,patient,part", ("3.5,no,x,train\n", "2,no,x,train\n")
    cells = {
        "fits": ("age,diagnosis", "50,I10"),
        "more": ("age,sex,bmi,creatinine,diagnosis,ward", "50,f,20,1,I10,3"),
        "lacks": ("sex,bmi,creatinine,diagnosis", "f,20,1,I10"),
    }
    later = {name: f"{own},{head}\n" + "".join(f"{row},{end}" for end in rows) for name, (own, row) in cells.items()}
    for name, text in later.items():
        (tmp_path / "sites" / f"{name}.csv").write_text(text)
    several = [*first.values(), *(source(tmp_path, name, "&columns=union") for name in later)]
    job = serve(tmp_path, words, InProcess([*members_of(tmp_path, several)]), "")
    job.run(tmp_path / "out", resume=True)
    assert Registry.read(tmp_path / "devices.json").preparation == before
    refused = [line["why"] for line in audit(tmp_path) if line["event"] == "refused"]
    assert "'ward' besides" in refused[0]
    assert "got no 'age' on" in refused[1]
    assert len(refused) == 2


def first(columns: str | None = "union", **cells: Any) -> FirstStatistics:
    return FirstStatistics(2, Summary.of(pd.DataFrame(cells)), columns=columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("each", "message"),
    [
        (
            (first(a=[1.0, 2.0]), first("shared", a=[1.0, 2.0])),
            "got columns=union on d0 and columns=shared on d1: name",
        ),
        ((first(a=[1.0, 2.0]), first(b=[1.0, 2.0]), first(a=["x", "y"])), "got 'a' with numbers on d0 and words on d2"),
        (
            (first("shared", a=[1.0, 2.0]), first("shared", b=[1.0, 2.0])),
            "all devices have, got none of 2: call them al",
        ),
        (
            tuple(first(**{f"{k}.{i}": [1.0, 2.0] for i in range(600)}) for k in range(2)),
            "columns=union takes the columns of all devices, and a table has at most 1,024 columns .*, got 1,200",
        ),
    ],
)
def test_tables_that_make_no_common_columns_are_refused(each: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        aligned([(f"d{i}", one) for i, one in enumerate(each)])


def test_a_device_answers_for_columns_that_it_lacks_in_a_union_alone() -> None:
    total = {"numbers": {"b": [3, 3.0, 0.0, 2.0]}, "targets": []}
    assert [*CommonTotals.read(total, first(a=[1.0, 2.0])).numbers] == ["b"]
    for columns in ("shared", None):
        with pytest.raises(RefusedError, match="totals are of columns that this device has, got 'b'"):
            CommonTotals.read(total, first(columns, a=[1.0, 2.0]))


def test_a_preparation_of_shared_columns_leaves_others_out() -> None:
    made = CommonPreparation(numbers={"a": Scale(0.0, 1.0, 2.0)}, columns="shared")
    frame = pd.DataFrame({"b": [5.0], "a": [3.0]})
    assert made.transform(made.conform(frame)).tolist() == [[1]]
    with pytest.raises(ValueError, match="got no 'a' in this table"):
        made.conform(frame[["b"]])
    with pytest.raises(ValueError, match="'b' besides in this table"):
        dataclasses.replace(made, columns=None).conform(frame)


def test_what_is_no_preparation_of_a_union_is_refused() -> None:
    scale = {"fill": 0.0, "mean": 0.0, "deviation": 1.0, "gaps": 2}
    good: dict[str, Any] = {"least": 1, "numbers": {"a": scale}, "words": {}, "columns": "union", "lacking": ["a"]}
    assert read_preparation(json.loads(json.dumps(good))).described() == good
    for wrong, message in (
        ({"lacking": ["b"]}, r"are a list of those of a union, got \['b'\]"),
        ({"lacking": "a"}, "are a list of those of a union, got 'a'"),
        ({"columns": "shared"}, r"are a list of those of a union, got \['a'\]"),
        ({"columns": "any"}, "columns is one of shared, union, got 'any': name one of these"),
    ):
        with pytest.raises(RefusedError, match=message):
            read_preparation(good | wrong)
    empty = Total(0, 0.0, math.inf, -math.inf)
    assert aligned([("d0", first(a=[1.0, 2.0])), ("d1", first(b=[1.0, 2.0]))])[0].summary.numbers["b"] == empty  # type: ignore[union-attr]
