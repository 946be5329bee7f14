"""Places on this machine, as a person writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedloom as fl
from fedloom.core.errors import SettingError
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import read_settings
from fedloom.experiments.trackers import TensorBoard
from fedloom.report.write import write_report
from fedloom.storage.files import path_of
from fedloom.tables.parquet import read_parquet
from fedloom.wording import local_path


def federation(test: bool = False) -> fl.Federation:
    train = fl.from_arrays(np.ones((4, 2), np.float32), np.array([0, 1, 0, 1]))
    return fl.federate(train, fl.iid(train.y, 2, seed=0), test=train if test else None, test_fraction=0)


@pytest.mark.parametrize(
    "place",
    [
        "s3://bucket/run", "S3://bucket", "s3:/bucket/run", "gs://b", "gs:/b", "az:/b", "abfss://c@d/x", " s3://b",
        "https://host/t.csv", "file:///tmp/x", "hdfs:/x", "alice@host:/data/run", "alice@host:run", "memory://x",
    ],
)  # fmt: skip
def test_an_address_is_no_folder(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for read in (local_path, path_of):
        with pytest.raises(
            ValueError, match=r"is a path on this machine, got the address .*: name a local one, and copy"
        ):
            read(place)
    with pytest.raises(SettingError, match="got the address"):
        path_of(Path(place))  # which makes one slash of two
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "place",
    ["run", "a/b", "/tmp/x", "C:\\runs", "C:/runs", "c:runs", "images:/x", "a:b", "a@b/c", "x$HOME/y", "./s3:/b"],
)
def test_a_path_stays_what_it_is(place: str) -> None:
    assert local_path(place) == Path(place)
    assert place == "./s3:/b" or local_path(Path(place)) == Path(place)


def test_the_home_folder_and_variables_of_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert (local_path("~"), local_path("~/a b")) == (tmp_path, tmp_path / "a b")
    assert local_path("a/~/b") == Path("a/~/b")
    with pytest.raises(ValueError, match=r"~nobody-here is the home folder of somebody .*, or \./~nobody-here/x for"):
        local_path("~nobody-here/x")
    for place in ("$HOME/runs", "${HOME}/runs", "$HOME"):
        with pytest.raises(ValueError, match=r"variables are a shell's, and in simple quotes .*: write ~ for the home"):
            local_path(place)
    (tmp_path / "$HOME").mkdir()
    assert local_path("$HOME/runs") == Path("$HOME/runs")


@pytest.mark.slow
def test_a_run_in_the_home_folder_is_found_there_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    settings = fl.RunSettings(rounds=1, cohort_size=2)
    for name in ("a", "b"):
        fl.run(fl.FedAvg(), federation(True), lambda: nn.Linear(2, 2), settings, directory=f"~/runs/{name}")
    assert len(fl.History.read("~/runs/a").metrics) == 2
    assert fl.verify("~/runs/a").whole
    assert "fedavg" in str(fl.summary("~/runs").files()["summary.csv"]).lower()
    assert fl.summary("~/runs/a", "~/runs/b").write("~/paper")[0].parent == tmp_path / "paper"
    assert write_report(["~/runs/a", "~/runs/b"], "~/page") == tmp_path / "page" / "report.html"
    assert write_report("~/runs") == tmp_path / "runs" / "report" / "report.html"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("place", ["s3://bucket/x", "~/x"])
@pytest.mark.parametrize(
    "use",
    [
        lambda p: fl.run(
            fl.FedAvg(), federation(), nn.Linear(2, 2), fl.RunSettings(rounds=1, cohort_size=2), directory=p
        ),
        lambda p: fl.History.read(p),
        lambda p: fl.verify(p),
        lambda p: fl.export(nn.Linear(2, 2), fl.Weights({}, {}), p + ".pt"),
        lambda p: fl.load_network(p + ".pt", fl.Model(lambda: nn.Linear(2, 2))),
        lambda p: fl.predict(p, "rows.csv"),
        lambda p: Experiment.from_directory(p),
        lambda p: Experiment(model="logistic", start=p + ".pt").models(federation().train),
        lambda p: read_settings(p + ".toml"),
        lambda p: TensorBoard(p),
        lambda p: write_report(p),
        lambda p: fl.read_csv(p + ".csv", label="y"),
        lambda p: fl.read_sites(p + "/*.csv", label="y"),
        lambda p: fl.read_sites([p + ".csv", "b.csv"], label="y"),
        lambda p: fl.tables.read_npz(p + ".npz"),
        lambda p: fl.tables.read_npy(p + ".npy"),
        lambda p: read_parquet(p + ".parquet", label="y"),
        lambda p: fl.sources.load("images", p),
        lambda p: fl.sources.from_huggingface(p),
        lambda p: fl.sources.from_huggingface("nobody/nothing", cache=p),
        lambda p: catalogue.data(p + ".csv?label=y"),
        lambda p: catalogue.data(p + ".npz"),
        lambda p: catalogue.data(p),
        lambda p: catalogue.data(f"images:{p}"),
        lambda p: catalogue.data(f"shakespeare:{p}?roles=2"),
        lambda p: catalogue.data(f"huggingface:{p}?text=t"),
        lambda p: catalogue.handed_out(f"lists:{p}.json", fl.Dataset(federation().train, None), 2, 0),
    ],
)  # fmt: skip
def test_every_function_that_takes_a_place_reads_it_so(
    use: Callable[[str], Any], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address is refused and no folder made; ~ is the home folder, and not a folder of that name."""
    (home := tmp_path / "home").mkdir()
    (here := tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    expanded, expand = list[str](), Path.expanduser
    monkeypatch.setattr(Path, "expanduser", lambda self: (expanded.append(str(self)), expand(self))[1])
    try:
        use(place)
        said = ""
    except Exception as error:
        said = str(error)
    assert os.listdir(here) == []
    assert ("got the address" in said) == place.startswith("s3")
    assert [*home.iterdir()] == [] or place.startswith("~")
    assert any(path.startswith("~") for path in expanded) == place.startswith("~")
