"""`--data NAME:FOLDER` reads original files."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.cli.main import main
from fedloom.data import Examples
from fedloom.experiments.shown_runs import describe_outputs
from fedloom.tables.vocabulary import TextPreparation
from hospitals import write_hospitals


def write(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def test_original_files_are_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 80), ("t10k", 20)):
        write(raw / f"{prefix}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        write(raw / f"{prefix}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8) % 10)
    few = ["--model", "logistic", "--clients", "4", "--cohort", "2", "--rounds", "1", "--partition", "iid"]
    assert main(["run", "fedavg", "--data", f"mnist:{tmp_path}", *few]) == 0
    said = "mnist, 64 training and 20 test examples of 1 x 28 x 28, 10 classes; clients hold out 16 more"
    assert said in capsys.readouterr().out


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fedavg", "--data", f"cifar10:{tmp_path}"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "cifar10 needs all its files in one folder" in err
    assert "nothing is downloaded" in err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s/*.tsv?label=readmitted", "sites must be two files or more, got none for 's/*.tsv': name others"),
        ("s/*.csv?client=patient", "each file of s/*.csv is a client, got 'client=patient': leave it out"),
        ("s/*.csv?lable=readmitted", "of a table one says, each once, some of s/*.csv?label=y&split=s&group=g&drop=a"),
        ("s/*.csv?lable=readmitted", "got 'lable=readmitted' (did you mean 'label'?)"),
        ("s/*.csv", "written alike, got no site has 'label': say which one is the label (label=NAME)"),
        ("s", "tables of a folder are read by a pattern, a client for each file, got 's': write 's/*.csv?label=NAME'"),
        ("s/Kiel.csv,s/Berlin.csv?label=readmitted", "each site must have a file, got none at s/Berlin.csv"),
        ("s/Kiel.csv?target=losdays", "there is no column 'losdays' (did you mean 'los_days'?)"),
        ("s/Kiel.csv?target=readmitted&drop=patient", "name a column of classes as label=readmitted"),
        ("s/Kiel.csv?label=readmitted&target=los_days", "got label=readmitted and target=los_days: leave one"),
        (
            "s/*.csv?label=readmitted&drop=patient&prepare=federated&least_clients=6",
            "least_clients is at most the number of clients that count words, 5, got 6: no word would be kept; name a",
        ),
        (
            "s/*.csv?label=readmitted&drop=patient&prepare=standard&least_clients=2",
            "least_clients=2 leaves out words where prepare='federated' or text=NAME, got 'standard': leave it out",
        ),
        ("s/none.parquet?label=y", "there is no file 's/none.parquet'; give the path of a .parquet file"),
        ("s/none.parquet?gaps=y", "gaps are words in text files, got gaps=y for s/none.parquet: leave it out"),
    ],
)  # fmt: skip
def test_tables_of_sites_that_are_refused(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_hospitals(tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    assert main(["data", "show", "--data", source]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_run_leaves_out_words_that_one_site_alone_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for site in ("Bonn", "Kiel", "Ulm"):
        rows = f"calm day only{site} only{site} only{site},good\nbad day,bad\n" * 10
        (tmp_path / f"{site}.csv").write_text(f"note,mood\n{rows}")
    few = ["--model", "text_cnn?width=4&maps=2", "--cohort", "3", "--rounds", "1", "--out", str(tmp_path / "out")]
    source = f"{tmp_path}/*.csv?text=note&label=mood&length=6&most=4&least_clients=2"
    assert main(["run", "fedavg", "--data", source, *few]) == 0
    table = json.loads((tmp_path / "out" / "manifest.json").read_text())["federation"]["table"]
    assert sorted(table["prepare"]["vocabulary"]) == ["bad", "calm", "day"]
    assert table["prepare"]["least_clients"] == 2
    assert table["digest"] == TextPreparation.read(table["prepare"]).digest()
    capsys.readouterr()
    assert main(["run", "fedavg", "--data", source.replace("clients=2", "clients=4"), *few[:-2]]) == 2
    assert "clients that count words, 3, got 4: no word would be kept" in " ".join(capsys.readouterr().err.split())


def test_what_is_to_be_said_of_an_example() -> None:
    def outputs(y: torch.Tensor, num: int, *names: str) -> str:
        return describe_outputs(Examples(torch.zeros(3, 2), y, num, targets=names))

    assert outputs(torch.tensor([0, 1, 2]), 3) == "3 classes"
    assert outputs(torch.zeros(3), 1, "los_days") == "target los_days"
    assert outputs(torch.zeros(3, 2), 2, "los_days", "cost") == "2 targets"
    assert outputs(torch.zeros(3), 1) == "1 target"
