"""A federation over the real Flower, on loopback: `fedloom serve` and `fedloom join`, as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from federation_processes import Federation, events, secured
from fedloom.cli.main import main
from two_folders import lines, of_loop, unlike_its_log, with_run, written

pytest.importorskip("flwr", reason="Flower is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path, "flower")
    yield federation
    federation.end()


@pytest.mark.parametrize("algorithm", ["pfedsd"])  # a minute each: the others run in memory
def test_a_federation_with_tls_and_keys_has_the_bits_of_the_loop(algorithm: str, federation: Federation) -> None:
    folder = federation.folder
    simulated = written(folder, rounds=2)
    (folder / "fed.toml").write_text((folder / "fed.toml").read_text().replace('"pfedsd"', f'"{algorithm}"'))
    certs = secured(folder, "flower", [0])
    federation.serve(*certs)
    federation.join(0)  # which waits for the server
    invited = ["invite", "device1", "--certs", certs[1], "--server", f"127.0.0.1:{federation.port}"]
    assert main([*invited, "--out", f"{folder}/one"]) == 0
    federation.join(1, "--invite", f"{folder}/one")
    assert federation.ended() == {"server": 0, "device0": 0, "device1": 0}, federation.text("server")
    assert (folder / "out" / "metrics.jsonl").read_bytes() == of_loop(folder, simulated)
    assert [event for event in events(folder) if event in ("enrolled", "joined")] == ["enrolled", "joined", "joined"]
    assert "the run is over" in federation.text("device0")
    assert federation.left() == []
    assert not [*(folder / "out").glob("*.db")]


def test_nobody_is_waited_for_and_uploads_are_small(federation: Federation) -> None:
    folder = federation.folder
    simulated = written(folder, rounds=4, devices=3)
    with_run(folder, cohort_size=3, asynchrony="fedbuff:size=2", compression="topk:0.3+bits:4", eval_every=4)
    federation.serve(*secured(folder, "flower", [0, 1, 2]), least=3)
    for k in range(3):
        federation.join(k)
    assert {*federation.ended().values()} == {0}, federation.text("server")
    assert unlike_its_log(folder, simulated, 4) == []


def test_three_devices_under_masks_have_the_bits_of_the_simulation(federation: Federation) -> None:
    folder = federation.folder
    simulated = written(folder, rounds=1, devices=3)
    masked = 'cohort_size = 3, secure_aggregation = "range=8"'
    (folder / "fed.toml").write_text((folder / "fed.toml").read_text().replace("cohort_size = 2", masked))
    federation.serve(*secured(folder, "flower", [0, 1, 2]), least=3)
    for k in range(3):
        federation.join(k)
    assert {*federation.ended().values()} == {0}, federation.text("server")
    assert (folder / "out" / "metrics.jsonl").read_bytes() == of_loop(folder, simulated)
    assert "uploads leave this device under masks: secure_aggregation" in " ".join(federation.text("device0").split())


def test_keys_decide_who_is_in_and_a_killed_server_goes_on(federation: Federation) -> None:
    """A key that is not registered is refused until it is; a killed server is resumed; a device whose key is removed
    is out. Nothing that either side started is left. Devices are killed over NATS, and by tests/attack/carried.py.
    """
    folder, log = federation.folder, federation.folder / "out" / "metrics.jsonl"
    written(folder, rounds=2)
    certs = secured(folder, "flower", [0, 1])
    assert main(["devices", "remove", certs[1], "device1"]) == 0
    server = federation.serve(*certs)
    federation.join(0)
    federation.join(1)
    federation.until(lambda: "the server does not let this device in" in federation.text("device1"))
    assert main(["devices", "add", certs[1], "device1", str(folder / "state1" / "key.pub")]) == 0
    federation.until(lambda: lines(log) >= 2)
    server.kill()
    server.wait()
    federation.serve(*certs, "--resume", least=1)
    assert main(["devices", "remove", certs[1], "device1"]) == 0
    federation.until(lambda: federation.processes["server"].poll() is not None)
    assert federation.processes["server"].returncode == 0, federation.text("server")
    assert lines(log) == 3
    federation.until(lambda: federation.processes["device0"].poll() is not None)
    for process in federation.processes.values():
        process.terminate()
        process.wait(60)
    assert federation.left() == []
