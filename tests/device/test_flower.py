"""A federation over the real Flower, on loopback: `fedloom serve` and `fedloom join`, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from test_serve import lines, of_loop, written

import launching
from fedloom.cli.main import main
from fedloom.wire.guard import descendants

pytest.importorskip("flwr", reason="Flower is not installed")
pytestmark = pytest.mark.slow
SECONDS = 120  # for a federation on two quiet cores


class Federation:
    """Processes of one federation, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, launching.free_port()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.started: set[int] = set()  # all processes that were ever seen below ours

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        with (self.folder / f"{name}.out").open("a") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedloom", *words], stdout=file, stderr=subprocess.STDOUT, text=True
            )
        self.processes[name] = process
        return process

    def serve(self, *more: str, least: int = 2) -> subprocess.Popen[str]:
        f = self.folder
        return self.start(
            "server", "serve", "--transport", "flower", "--settings", f"{f}/fed.toml", "--out", f"{f}/out", "--test",
            f"{f}/test.npz", "--port", str(self.port), "--least", str(least), *more,
        )  # fmt: skip

    def join(self, k: int, *more: str) -> subprocess.Popen[str]:
        f = self.folder
        return self.start(
            f"device{k}", "join", "--transport", "flower", "--server", f"127.0.0.1:{self.port}",
            "--data", f"{f}/data{k}", "--state", f"{f}/state{k}", *more,
        )  # fmt: skip

    def text(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def until(self, condition: object, seconds: float = SECONDS) -> None:
        end = deadline(seconds)
        while not condition():  # type: ignore[operator]
            self.look()
            assert time.monotonic() < end, {name: self.text(name) for name in self.processes}
            time.sleep(0.05)

    def ended(self, seconds: float = SECONDS) -> dict[str, int]:
        end = deadline(seconds)
        while any(p.poll() is None for p in self.processes.values()):
            self.look()
            assert time.monotonic() < end, {name: self.text(name) for name in self.processes}
            time.sleep(0.2)
        return {name: p.returncode for name, p in self.processes.items()}

    def look(self) -> None:
        self.started.update(descendants(os.getpid()))

    def left(self, seconds: float = 30) -> list[str]:
        """Command lines of processes that we started and that still run."""
        end = deadline(seconds)
        while found := [command for process in self.started if (command := _command(process))]:
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        return found


def deadline(seconds: float) -> float:
    """When to give up; later on a machine that does other work."""
    return time.monotonic() + seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path)
    yield federation
    for process in federation.processes.values():
        process.kill()
        process.wait()
    for process in federation.started:
        if _command(process):
            os.kill(process, signal.SIGKILL)


def events(folder: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (folder / "out" / "audit.jsonl").read_text().splitlines()]


def secured(folder: Path, devices: Sequence[int]) -> list[str]:
    """Make certificates and keys, and register the devices."""
    certs = str(folder / "certs")
    assert main(["certs", "authority", certs]) == 0
    assert main(["certs", "server", certs, "--name", "127.0.0.1", "--name", "localhost"]) == 0
    for k in devices:
        state = folder / f"state{k}"
        assert main(["certs", "device", str(state)]) == 0
        (state / "authority.crt").write_bytes((folder / "certs" / "authority.crt").read_bytes())
        assert main(["devices", "add", certs, f"device{k}", str(state / "key.pub")]) == 0
    return ["--certs", certs]


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "pfedsd"])
def test_a_federation_with_tls_and_keys_has_the_bits_of_the_loop(algorithm: str, federation: Federation) -> None:
    folder = federation.folder
    simulated = written(folder, rounds=2)
    (folder / "fed.toml").write_text((folder / "fed.toml").read_text().replace('"pfedsd"', f'"{algorithm}"'))
    federation.serve(*secured(folder, [0, 1]))
    for k in (0, 1):
        federation.join(k)  # which wait for the server
    assert federation.ended() == {"server": 0, "device0": 0, "device1": 0}, federation.text("server")
    assert (folder / "out" / "metrics.jsonl").read_bytes() == of_loop(folder, simulated)
    assert events(folder).count("joined") == 2
    assert "the run is over" in federation.text("device0")
    assert federation.left() == []
    assert not [*(folder / "out").glob("*.db")]


def test_keys_decide_who_is_in_and_a_killed_server_and_device_go_on(federation: Federation) -> None:
    """A key that is not registered is refused until it is; a device that is killed returns with its state; a killed
    server is resumed; a device whose key is removed is out. Nothing that either side started is left.
    """
    folder, log = federation.folder, federation.folder / "out" / "metrics.jsonl"
    written(folder, rounds=6)
    certs = secured(folder, [0, 1])
    assert main(["devices", "remove", certs[1], "device1"]) == 0
    server = federation.serve(*certs)
    federation.join(0)
    federation.join(1)
    federation.until(lambda: "the server does not let this device in" in federation.text("device1"))
    assert main(["devices", "add", certs[1], "device1", str(folder / "state1" / "key.pub")]) == 0
    federation.until(lambda: lines(log) >= 2)
    federation.processes["device1"].kill()
    federation.until(lambda: '"left"' in (folder / "out" / "audit.jsonl").read_text())
    federation.join(1)
    federation.until(lambda: events(folder).count("joined") >= 3)
    server.kill()
    server.wait()
    federation.serve(*certs, "--resume", least=1)
    assert main(["devices", "remove", certs[1], "device1"]) == 0
    federation.until(lambda: federation.processes["server"].poll() is not None)
    assert federation.processes["server"].returncode == 0, federation.text("server")
    assert lines(log) == 7
    federation.until(lambda: federation.processes["device0"].poll() is not None)
    for process in federation.processes.values():
        process.terminate()
        process.wait(60)
    assert federation.left() == []
