"""Five hospitals as devices: a table each, a server with the test rows of all, and the simulation of these tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.coordinator.history import History
from fedloom.coordinator.job import Job
from fedloom.core.task import needs_moments
from fedloom.deploy.device import Membership
from fedloom.deploy.device.data_manager import default_name
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import RankFleet
from fedloom.deploy.server.joining import register_devices
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.ranks.communication import CommunicationManager
from fedloom.testing.in_process import InProcess
from hospitals import SIZES, Row, write_hospitals, write_table

COLUMNS = "target=los_days&drop=readmitted,patient"
WORDS: dict[str, Any] = {
    "model": "mlp", "task": "regression", "local.epochs": 2, "local.batch_size": 8, "run.rounds": 3,
    "run.cohort_size": 3, "run.measures": ["rmse", "mae", "r2"], "run.compilation": "none",
}  # fmt: skip


def _with_parts(rows: list[Row]) -> None:
    """Say of each row whether it is to train or to test on."""
    rng = np.random.default_rng(len(rows))
    for row in rows:
        row["part"] = "test" if rng.random() < 0.25 else "train"


def _without_creatinine(rows: list[Row]) -> None:
    """Leave a column empty, which this hospital never measures."""
    _with_parts(rows)
    for row in rows:
        row["creatinine"] = ""


def write_sites(folder: Path) -> None:
    """Write the tables of five hospitals, and that of the server with the test rows of all of them."""
    change = dict.fromkeys(SIZES, _with_parts) | {"Kiel": _without_creatinine}
    made = write_hospitals(folder / "sites", change=change)
    tested = [row for rows in made.values() for row in rows if row["part"] == "test"]
    write_table(folder / "test.csv", tested)


def settings(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"algorithm": algorithm, **WORDS, **more}


def site_source(folder: Path, site: str) -> str:
    return f"{folder}/sites/{site}.csv?{COLUMNS}&split=part&prepare=federated"


def source_of_server(folder: Path) -> str:
    return f"{folder}/test.csv?{COLUMNS},part&prepare=federated"


def simulated(folder: Path, words: dict[str, Any]) -> History:
    """Return the simulation of the five tables."""
    alone = {"run.engine": "loop", "run.threads": 1, "data.source": site_source(folder, "*")}
    return Experiment().with_all(words | alone).job().run(folder / "simulated")


def members_of(folder: Path, sources: Sequence[str]) -> list[Membership]:
    """Return a device for each table; their ids are in this order."""
    out = []
    for k, source in enumerate(sources):
        (folder / f"state{k}").mkdir(exist_ok=True)
        (folder / f"state{k}" / "id").write_text(f"{k:032x}")
        out.append(Membership(source, folder / f"state{k}", name=default_name(source)))
    return out


def members(folder: Path) -> list[Membership]:
    """Return the five devices of `write_sites`."""
    return members_of(folder, [site_source(folder, site) for site in SIZES])


def audit(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def serve(folder: Path, words: dict[str, Any], manager: CommunicationManager, test: str, **more: Any) -> Job:
    """Return the job of a server whose devices have registered, as `fedloom serve` makes it."""
    experiment = Experiment().with_all(words | {"run.engine": "devices", "run.on_nonfinite": "refuse"})
    fleet, jobs = RankFleet(manager, Audit(folder / "audit.jsonl")), list[Job]()
    path = folder / "devices.json"

    def check_fit() -> None:
        jobs.append(experiment.changed("data.source", f"devices:{path}").job())

    register_devices(
        fleet, path, experiment.described(), experiment.model.split(","), test=test,
        moments=needs_moments(catalogue.task(experiment.task)), check_fit=check_fit, **more,
    )  # fmt: skip
    return dataclasses.replace(jobs[0], fleet=fleet)


def served(folder: Path, words: dict[str, Any]) -> History:
    """Return the run of the five devices in this process."""
    manager = InProcess(members(folder))
    return serve(folder, words, manager, source_of_server(folder)).run(folder / "out")


def check_same_run(devices: Path, simulation: Path, exactly: bool) -> None:
    """Compare two runs: preparation, task and records.

    `exactly`: also of the personal measures. A simulation whose clients share one model evaluates it on the rows of
    all in one batch, which moves the last digits of float32 outputs.
    """
    ours, theirs = (json.loads((run / "manifest.json").read_text()) for run in (devices, simulation))
    for name in ("digest", "prepare", "fitted_on", "columns"):
        assert ours["federation"]["table"][name] == theirs["federation"]["table"][name]
    assert ours["task"] == theirs["task"]
    assert ours["task"]["centre"]
    lines = [(run / "metrics.jsonl").read_text().splitlines() for run in (devices, simulation)]
    records = [list(map(json.loads, each)) for each in lines]
    assert len(records[0]) == len(records[1])
    for mine, other in zip(*records, strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            if exactly or not name.startswith("personal_"):
                assert value == other[name], name
            else:
                assert value == pytest.approx(other[name], rel=1e-6), name


def write_settings(folder: Path, words: dict[str, Any]) -> None:
    """Write what is read by `fedloom serve`."""
    (folder / "fed.json").write_text(json.dumps(words | {"run.bound": "none"}))


def commands(folder: Path) -> list[list[str]]:
    """Return the command of the server and of each of the five devices."""
    serve = ["serve", "--settings", f"{folder}/fed.json", "--out", f"{folder}/out", "--test", source_of_server(folder)]
    joins = []
    for k, site in enumerate(SIZES):
        (folder / f"state{k}").mkdir(exist_ok=True)
        (folder / f"state{k}" / "id").write_text(f"{k:032x}")
        joins.append(["join", "--data", site_source(folder, site), "--state", f"{folder}/state{k}"])
    return [["-m", "fedloom", *command] for command in (serve, *joins)]
