"""Processes of a federation on loopback: `fedloom serve` and `fedloom join` over a transport of the internet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import launching
from fedloom.cli.main import main
from fedloom.deploy.child_program import descendants

SECONDS = 200  # to give up after; on two quiet cores the longest takes 90


class Federation:
    """Processes of one federation, in a folder."""

    def __init__(self, folder: Path, transport: str) -> None:
        self.folder, self.transport, self.port = folder, transport, launching.free_port()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.before = {*descendants(os.getpid())}  # of other tests
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
            "server", "serve", "--transport", self.transport, "--settings", f"{f}/fed.toml", "--out", f"{f}/out",
            "--test", f"{f}/test.npz", "--port", str(self.port), "--least", str(least), *more,
        )  # fmt: skip

    def join(self, k: int, *more: str) -> subprocess.Popen[str]:
        f = self.folder
        return self.start(
            f"device{k}", "join", "--transport", self.transport, "--name", f"device{k}",
            "--server", f"127.0.0.1:{self.port}", "--data", f"{f}/data{k}", "--state", f"{f}/state{k}", *more,
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
        self.started.update({*descendants(os.getpid())} - self.before)

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        for number in self.started:
            if command_of(number):
                os.kill(number, signal.SIGKILL)

    def left(self, seconds: float = 30) -> list[str]:
        """Command lines of processes that we started and that still run."""
        end = deadline(seconds)
        while found := [command for process in self.started if (command := command_of(process))]:
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        return found


def deadline(seconds: float) -> float:
    """When to give up; up to twice as late on a machine that does other work, before a test is taken to hang."""
    return time.monotonic() + seconds * min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), 2.0)


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def events(folder: Path) -> list[str]:
    *whole, _ = (folder / "out" / "audit.jsonl").read_text().split("\n")  # behind the last break a line is written
    return [json.loads(line)["event"] for line in whole]


def secured(folder: Path, transport: str, devices: Sequence[int] = (0, 1)) -> list[str]:
    """Make certificates of a server and keys of devices over Flower or NATS, and register these."""
    certs = str(folder / "certs")
    assert main(["certs", "authority", certs]) == 0
    assert main(["certs", "server", certs, "--name", "127.0.0.1", "--name", "localhost"]) == 0
    for k in devices:
        state = folder / f"state{k}"
        if transport == "nats":
            from fedloom.deploy.nats.nats_server import make_key

            public = make_key(state / "nats.nk")
        else:
            assert main(["certs", "device", str(state)]) == 0
            public = str(state / "key.pub")
        (state / "authority.crt").write_bytes((folder / "certs" / "authority.crt").read_bytes())
        assert main(["devices", "add", certs, f"device{k}", public]) == 0
    return ["--certs", certs]
