"""What people get wrong first with targets, measures and tables of sites: the rule, the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.cli.argument_parser import way_on
from fedloom.cli.main import main
from hospitals import SIZES, Row, write_hospitals, write_table

RUN = "--model logistic --rounds 1 --cohort 5 --engine loop --threads 1"
DAYS = "?target=los_days&drop=patient,readmitted&prepare=standard"
AGAIN = "?label=readmitted&drop=patient,los_days&prepare=standard"

REFUSED = {
    "numbers under classification": (
        f"run fedavg --data s/*.csv{DAYS}", "are class numbers (integers)", "got float32", "--task regression"
    ),
    "classes under regression": (
        f"run fedavg --data s/*.csv{AGAIN} --task regression", "are floating point numbers", "got class numbers",
        "?target=COLUMN",
    ),
    "classes under several labels": (
        f"run fedavg --data s/*.csv{AGAIN} --task multi_label", "are floating point numbers", "got class numbers",
        "--task classification",
    ),
    "a target without a value": (
        f"run fedavg --data gaps/*.csv{DAYS} --task regression", "must be a number in every row",
        "without a value in line 2 of Kiel.csv", "leave out rows without a target",
    ),
    "a target without end": (
        f"run fedavg --data endless/*.csv{DAYS} --task regression", "must be a number in every row", "with inf",
        "use another unit",
    ),
    "words as target": (
        f"run fedavg --data words/*.csv{DAYS} --task regression", "must be a number in every row", "'short'",
        "label=los_days",
    ),
    "a unit in a cell": (
        f"run fedavg --data units/*.csv{DAYS} --task regression", "must be a number in every row", "'3 days'",
        "write the unit 'days' into the name",
    ),
    "a column that one site lacks": (
        f"run fedavg --data lacks/*.csv{AGAIN}", "must have the same columns", "no 'age' in Kiel",
        "name columns alike in all files",
    ),
    "dates": (
        f"run fedavg --data dates/*.csv{AGAIN}", "must be numbers, or a few different words", "different dates",
        "days since the first",
    ),
    "words and gaps that nobody prepares": (
        "run fedavg --data s/*.csv?label=readmitted&drop=patient,los_days", "columns of features must be numbers",
        "'age' with 17 missing", "prepare them",
    ),
    "the label among what is left out": (
        "run fedavg --data s/*.csv?label=readmitted&drop=readmitted&prepare=standard", "a column has one role",
        "'readmitted'", "name it once",
    ),
    "a group that no site has": (
        f"run fedavg --data s/*.csv{AGAIN}&group=pat", "must have the same columns", "no site has 'pat'",
        "name columns as the first lines do",
    ),
    "FedNTD with numbers": (
        f"run fedntd --data s/*.csv{DAYS} --task regression", "compares the probabilities of classes", "numbers",
        "such as FedAvg",
    ),
    "a loss of classes for numbers": (
        f"run fedavg --data s/*.csv{DAYS} --task ldam", "are class numbers", "got float32", "--task regression"
    ),
    "a measure of another task": (
        f"run fedavg --data s/*.csv{DAYS} --task regression --measures auc", "measures are some of", "got 'auc'",
        "rmse, mae, r2",
    ),
    "a misspelt measure": (
        f"run fedavg --data s/*.csv{AGAIN} --task binary --measures aucc", "measures are some of", "got 'aucc'",
        "did you mean 'auc'",
    ),
    "a stop by what is not measured": (
        f"run fedavg --data s/*.csv{DAYS} --task regression --val-fraction 0.2 --monitor val_accuracy --patience 3",
        "must be one of the measures of this task", "got 'val_accuracy'", "val_rmse",
    ),
    "a partition by classes of numbers": (
        f"run fedavg --data s/Kiel.csv{DAYS} --task regression --partition dirichlet:0.1 --clients 3",
        "divides classes", "targets that are none (los_days)", "quantiles:Q:P",
    ),
    "weights of other classes": (
        f"run fedavg --data s/*.csv{AGAIN} --task classification?class_weights=1,2,3", "one weight for each",
        "got 3", "give as many",
    ),
    "a misspelt setting of a task": (
        f"run fedavg --data s/*.csv{DAYS} --task regression?eror=huber", "of task regression one says",
        "got 'eror=huber'", "did you mean 'error'",
    ),
    "an error that there is not": (
        f"run fedavg --data s/*.csv{DAYS} --task regression?error=l2", "error must be one of", "got 'l2'", "huber"
    ),
    "two logits for one": (
        f"run fedavg --data s/*.csv{AGAIN} --task binary --model odd:Two", "logit", "2", "1"
    ),
    "an analysis of classes": (
        "analyse done forgetting", "forgetting looks at classes", "targets of this run are numbers", "RMSE"
    ),
    "new rows without a column": (
        "predict done --data new.csv --out out.csv", "columns must have the names", "got no 'age'",
        "as in the table that was trained on",
    ),
    "a misspelt client": (
        "predict done --data s/Kiel.csv --client Keil --out out.csv", "named by its name or number", "got 'Keil'",
        "did you mean 'Kiel'",
    ),
    "rows to evaluate without a target": (
        "evaluate done --data blind.csv", "takes the columns 'los_days'", "got none called", "or predict alone"
    ),
}  # fmt: skip
WARNED = {
    "a target among the features": (
        f"run fedavg --data copy/*.csv{DAYS} --task regression", "'los_days' can be computed of 'stay' alone",
        "drop=stay",
    ),
    "units that sites mix": (
        f"run fedavg --data mixed/*.csv{AGAIN} --task binary", "'creatinine' is about", "write it in one unit"
    ),
    "numbers of patients": (
        "run fedavg --data s/*.csv?label=readmitted&drop=los_days&prepare=standard --task binary",
        "columns made of words are hardly learnt", "drop=patient",
    ),
    "a class that is rare": (
        f"run fedavg --data rare/*.csv{AGAIN} --task binary", "accuracy says little", "--headline auc"
    ),
}  # fmt: skip


def each(column: str, value: Callable[[int, Row], str]) -> Callable[[list[Row]], None]:
    def change(rows: list[Row]) -> None:
        for at, row in enumerate(rows):
            row[column] = value(at, row)

    return change


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("tasks")
    made = write_hospitals(here / "s")

    def written(name: str, change: Callable[[list[Row]], None], *sites: str) -> None:
        write_hospitals(here / name, change=dict.fromkeys(sites or tuple(SIZES), change))

    written("gaps", lambda rows: rows[0].update(los_days=""), "Kiel")
    written("endless", lambda rows: rows[0].update(los_days="inf"), "Kiel")
    written("words", each("los_days", lambda _, row: "long" if float(row["los_days"]) > 3 else "short"))
    written("units", lambda rows: rows[0].update(los_days="3 days"), "Bremen")
    written("lacks", lambda rows: [row.pop("age") for row in rows] and None, "Kiel")
    written("dates", each("admitted", lambda at, _: f"2020-{at % 12 + 1:02d}-{at % 28 + 1:02d}"))
    written("copy", each("stay", lambda _, row: row["los_days"]))
    scaled = each(
        "creatinine", lambda _, row: f"{88 * float(row['creatinine'] or 1) if row['creatinine'] != 'NA' else 88:.1f}"
    )
    written("mixed", scaled, "Kiel")
    written("rare", each("readmitted", lambda at, _: "yes" if at % 12 == 0 else "no"))
    rows = made["Kiel"]
    write_table(here / "new.csv", [{k: v for k, v in row.items() if k != "age"} for row in rows])
    write_table(here / "blind.csv", [{k: v for k, v in row.items() if k != "los_days"} for row in rows])
    (here / "odd.py").write_text(
        "from torch import nn\n\nclass Two(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Flatten(), nn.Linear(10, 2))\n"
    )
    return here


@pytest.fixture
def said(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Any]:
    def call(command: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        status = main(
            [*command.split()[:2], *RUN.split(), *command.split()[2:]]
            if command.startswith("run ")
            else command.split()
        )
        return status, *capsys.readouterr()

    if not (folder / "done").exists():
        assert call(f"run fedavg --data s/*.csv{DAYS} --task regression --out done")[0] == 0
    return call


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str, said: Callable[[str], Any]) -> None:
    command, *parts = REFUSED[name]
    status, _, err = said(command)
    assert status == 2
    first, *more = err.splitlines()
    assert more == [f"{way} tells more" for way in [way_on(first)] if way]
    assert [part for part in parts if part not in err] == [], err


@pytest.mark.parametrize("name", WARNED)
def test_it_is_warned_of(name: str, said: Callable[[str], Any]) -> None:
    command, *parts = WARNED[name]
    status, _, err = said(command)
    assert status == 0
    told = " ".join(err.split())
    assert [part for part in ("warning: ", *parts) if part not in told] == [], told
