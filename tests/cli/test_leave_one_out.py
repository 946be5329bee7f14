"""Each site is left out once: one command, a run and a row for each, which goes on where it broke off."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import log_loss, roc_auc_score

import fedloom as fl
from commands import call, error
from fedloom import History
from fedloom.cli.leave_one_out import show_sites
from fedloom.experiments.experiment import Experiment
from hospitals import SIZES, write_hospitals

DATA = "?label=readmitted&drop=patient,los_days&prepare=standard"
FEW = ["--model", "logistic", "--rounds", "1", "--cohort", "4"]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sites")
    write_hospitals(folder)
    return f"{folder}/*.csv{DATA}"


@pytest.mark.slow
def test_each_site_is_left_out_once_and_the_table_has_its_mean(
    sites: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    command = ["compare", "fedavg", "--leave-one-site-out", "--data", sites, *FEW, "--seed", "0,1", "--out", str(out)]
    status, said, _ = call(capsys, *command)
    assert status == 0
    runs = sorted(path.parent for path in out.rglob("settings.json"))
    assert [str(run.relative_to(out)) for run in runs] == [
        f"seed-{seed}/without-{site}" for seed in (0, 1) for site in SIZES
    ]
    for place in runs:
        settings = json.loads((place / "settings.json").read_text())
        assert settings["clients"]["new"] == f"list:{[*SIZES].index(place.name.removeprefix('without-'))}"
        assert settings["data"]["partition"] == "natural"
    rows = list(csv.DictReader((out / "sites.csv").read_text().splitlines()))
    assert len(rows) == 2 * 5 * 2  # seeds, sites, ways
    table = {}
    for site in SIZES:
        found = [History.read(out / f"seed-{seed}/without-{site}").metrics[-1] for seed in (0, 1)]
        for way in ("global", "fine_tuned"):
            values = [last[f"new_{way}_accuracy"] for last in found]
            own = [float(row["value"]) for row in rows if (row["site"], row["model"]) == (site, way)]
            assert own == values
            table[site, way] = 100 * float(np.mean(values))
        line = next(line for line in said.splitlines() if line.startswith(site))
        assert line.split()[1:] == [f"{table[site, way]:.1f}" for way in ("global", "fine_tuned")]
    means = [np.mean([table[site, way] for site in SIZES]) for way in ("global", "fine_tuned")]
    last = next(line for line in said.splitlines() if line.startswith("mean of sites"))
    assert last.split()[3:] == [f"{mean:.1f}" for mean in means]
    assert "local_only" not in said

    shutil.rmtree(out / "seed-1/without-Rostock")
    (out / "sites.csv").unlink()
    again = call(capsys, *command, "--resume")
    assert again[0] == 0
    assert last in again[1]
    assert "already holds a run" in error(capsys, *command)


@pytest.mark.slow
def test_two_algorithms_have_columns_each(sites: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "fedavg", "fedprox", "--leave-one-site-out", "--data", sites, *FEW]
    status, said, _ = call(capsys, *command, "--measures", "auc,log_loss")
    assert status == 0
    assert "run 10 of 10, fedprox/without-Rostock" in said
    headings = [line for line in said.splitlines() if line.split() == ["fedavg", "fedavg", "fedprox", "fedprox"]]
    assert len(headings) == 3  # a table for each measure
    for title in (
        "Accuracy on the left-out site, %",
        "AUC on the left-out site, %",
        "Log loss on the",
    ):
        assert title in " ".join(said.split())


@pytest.mark.slow
def test_every_measure_that_is_asked_for_is_that_of_the_left_out_site(
    sites: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    command = ["compare", "fedavg", "--leave-one-site-out", "--data", sites, *FEW, "--measures", "auc,log_loss"]
    status, said, _ = call(capsys, *command, "--out", str(out))
    assert status == 0
    rows = list(csv.DictReader((out / "sites.csv").read_text().splitlines()))
    assert len(rows) == 5 * 2 * 3  # sites, ways, measures
    shown = said[said.index("AUC on") : said.index("Log loss on")].splitlines()
    for number, site in enumerate(SIZES):
        job = Experiment.from_directory(out / f"without-{site}").job()
        (weights,) = job.restore(out / f"without-{site}").global_weights().values()
        (model,) = job.population.models.values()
        assert job.federation.local_test is not None
        held_out = job.federation.train.select(job.federation.local_test.rows(number))
        with torch.no_grad():
            logits = fl.module(model, weights)(held_out.normalise(held_out.x, torch.float32)).double()
        said_of = {
            "auc": roc_auc_score(held_out.y, (logits[:, 1] - logits[:, 0]).numpy()),
            "log_loss": log_loss(held_out.y, logits.softmax(1).numpy(), labels=[0, 1]),
        }
        for name, value in said_of.items():
            (row,) = (r for r in rows if (r["site"], r["model"], r["measure"]) == (site, "global", name))
            assert float(row["value"]) == pytest.approx(value, abs=1e-6)
        line = next(line for line in shown if line.startswith(site))
        assert line.split()[1] == f"{100 * said_of['auc']:.1f}"
        last = History.read(out / f"without-{site}").metrics[-1]
        assert last["new_global_auc"] == last["new_others_by_client"]["global"]["auc"][str(number)]


def test_a_site_of_one_class_has_no_auc_and_is_in_no_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for site in ("a", "b", "c"):
        y = np.arange(30) % 2 if site != "b" else np.zeros(30, int)
        rows = "".join(f"{x:.2f},{of}\n" for x, of in zip(rng.normal(size=30) + y, y, strict=True))
        (tmp_path / f"{site}.csv").write_text("x,label\n" + rows)
    command = ["compare", "fedavg", "--leave-one-site-out", "--data", f"{tmp_path}/*.csv", "--model", "logistic"]
    more = ["--rounds", "1", "--cohort", "2", "--measures", "auc", "--out", str(tmp_path / "out")]
    status, said, _ = call(capsys, *command, *more)
    assert status == 0
    lines = said[said.index("AUC on") :].splitlines()
    found = {line.split()[0]: line.split()[-2] for line in lines if line[:1] in "abc" and len(line.split()) == 3}
    assert found["b"] == "undefined"
    mean = next(line for line in lines if line.startswith("mean of sites")).split()[3]
    assert float(mean) == pytest.approx((float(found["a"]) + float(found["c"])) / 2, abs=0.1)
    assert "Undefined, so in no mean: b." in " ".join(said.split())
    rows = list(csv.DictReader((tmp_path / "out/sites.csv").read_text().splitlines()))
    assert [r["value"] for r in rows if r["site"] == "b" and r["measure"] == "auc"] == ["", ""]
    last = History.read(tmp_path / "out/without-b").metrics[-1]
    assert last["new_others_by_client"]["global"] == {"auc": {"1": None}}
    assert (last["new_global_auc"], last["new_global_auc_undefined"]) == (None, 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--partition", "iid"], "sites are natural clients, got partition iid: write --partition natural, and name"),
        (["--new", "1"], "holds out each site in turn, got --new '1' too: leave --new out"),
        (["--cohort", "5"], "--cohort 5 is larger than the 4 clients that are not new; set --cohort <= 4"),
    ],
)
def test_what_is_refused(sites: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "fedavg", "--leave-one-site-out", "--data", sites, *FEW, *more]
    assert message in " ".join(error(capsys, *command).split())


def test_too_many_sites_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["x,label,who", *(f"{k % 3},{k % 2},{k % 101}" for k in range(1010))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    data = ["--data", f"{tmp_path}/t.csv?client=who", "--partition", "natural"]
    said = error(capsys, "compare", "fedavg", "--leave-one-site-out", *data, *FEW)
    assert "takes 2 to 100 sites, a run for each, got 101: hold out some of them once" in " ".join(said.split())


def test_tables_of_sites_have_natural_clients_unless_a_partition_is_named(sites: str) -> None:
    assert Experiment.of({"data": {"source": sites}}).data.partition == "natural"
    assert Experiment().changed("data.source", sites).data.partition == "natural"
    assert Experiment.of({"data": {"source": sites, "partition": "iid"}}).data.partition == "iid"
    assert Experiment.of({"data": {"source": sites, "partition": "shards:2"}}).data.partition == "shards:2"
    one = sites.replace("*", "Kiel")
    assert Experiment.of({"data": {"source": one}}).data.partition == "shards:2"
    for source in (f"{one.partition('?')[0]}?label=y&client=town", "huggingface:mood?text=note&client=town&label=y"):
        assert Experiment.of({"data": {"source": source}}).data.partition == "natural"
        assert Experiment.of({"data": {"source": source, "partition": "iid"}}).data.partition == "iid"
    assert Experiment.of(Experiment.of({"data": {"source": sites}}).described()).data.partition == "natural"


def test_measures_that_are_no_shares_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measures = fl.Regression().measures[:1]

    def run(site: int, error: float) -> tuple[str, History]:
        last = {
            "new_global_rmse_by_samples": 0.0,
            "new_global_rmse": error,
            "new_by_client": {"global": {str(site): error}},
        }
        federation = {"shown": [0, 1], "client_names": ["Kiel", "Bremen"]}
        made = SimpleNamespace(
            metrics=[last], settings={}, algorithm="fedavg", federation=federation, task_measures=measures
        )
        return "fedavg", made  # type: ignore[return-value]

    show_sites([run(0, 4.0), run(1, 5.123456)], str(tmp_path), Console(width=80))
    said = capsys.readouterr().out
    assert "RMSE on the left-out site" in " ".join(said.split())
    assert [line.split() for line in said.splitlines() if line[:4] in ("Kiel", "Brem", "mean")] == [
        ["Kiel", "4"],
        ["Bremen", "5.123"],
        ["mean", "of", "sites", "4.562"],
    ]
    assert (tmp_path / "sites.csv").read_text().splitlines()[2] == "fedavg,Bremen,0,global,rmse,5.123456"
    show_sites(
        [
            (
                "fedavg",
                SimpleNamespace(metrics=[], settings={}, algorithm="", federation={}, task_measures=list(measures)),
            )
        ],
        None,
        Console(),
    )  # type: ignore[list-item]
    assert capsys.readouterr().out == ""
