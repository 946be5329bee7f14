"""What is started of Flower, and with which words; folders that killed processes left."""

from __future__ import annotations

import importlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connected import until
from fedloom.core.errors import RankError, SettingError
from fedloom.deploy.flower import flower_processes
from fedloom.deploy.flower.flower_commands import END
from fedloom.deploy.flower.flower_processes import SuperLink, SuperNode, _why_it_ended, free_port, private_folder
from fedloom.deploy.flower.flower_relay import SOCKET
from fedloom.ranks import communication


def test_folders_are_private_and_those_of_killed_processes_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (
        f"fedloom-{dead.pid}-abc",
        f"fedloom-{os.getpid()}-abc",
        "fedloom-devices-abc",
        f"fedloom-{dead.pid}-a.b",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / f"fedloom-{dead.pid}-abc" / "state.db").write_text("all messages")
    ours = private_folder()
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {ours.name, f"fedloom-{os.getpid()}-abc", "fedloom-devices-abc", f"fedloom-{dead.pid}-a.b"}


class Started:
    """In the place of `ChildProgram`: what was started, and what the commands of `flwr` say."""

    all: list[Started] = []  # noqa: RUF012
    status = 0

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.command, self.env, self.has_ended = [*command], dict(env), False
        self.all.append(self)
        if "fedloom.deploy.flower.flower_commands" in command:
            words = " ".join(command[3:]).split(f" {END} ")
            said = [f'registered\n{{"success": true, "node-id": {100 + k}}}\n' for k, _ in enumerate(words)]
            log.write_text(END.join(said) + END)

    def wait(self, timeout: float) -> int:
        return self.status

    def close(self) -> None:
        self.has_ended = True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    Started.all, Started.status = [], 0
    listening = iter([False, *[True] * 1000])
    monkeypatch.setattr(flower_processes, "ChildProgram", Started)
    monkeypatch.setattr(flower_processes, "_is_open", lambda port: next(listening))
    return Started.all


def commands(process: Started) -> list[str]:
    return " ".join(process.command[3:]).split(f" {END} ")


def test_a_superlink_listens_on_this_host_with_tls_and_keys(tmp_path: Path, started: list[Started]) -> None:
    for name in ("ca", "crt", "key"):
        (tmp_path / name).write_text("")
    keys = {"Kiel": "ecdsa one", "Bremen": "ecdsa two"}
    tls = (tmp_path / "ca", tmp_path / "crt", tmp_path / "key")
    link = SuperLink(tmp_path / "log", 1234, tmp_path / "server", lambda: True, tls, lambda: dict(keys))
    try:
        words = started[0].command
        assert words[:5] == ["flower-superlink", "--host", "127.0.0.1", "--port", "1234"]
        assert "--insecure" not in words
        assert words[-7:] == [
            "--ssl-ca-certfile", f"{tmp_path}/ca", "--ssl-certfile", f"{tmp_path}/crt", "--ssl-keyfile",
            f"{tmp_path}/key", "--enable-supernode-auth",
        ]  # fmt: skip
        assert started[0].env[SOCKET] == str(tmp_path / "server")
        assert f'root-certificates = "{tmp_path}/ca"' in (link.home / "config.toml").read_text()
        first = commands(started[1])
        assert [each.split()[:2] for each in first[:2]] == [["supernode", "register"]] * 2
        assert first[2].startswith("run ")
        assert link._registered == {"Kiel": ("ecdsa one", 100), "Bremen": ("ecdsa two", 101)}
        del keys["Kiel"]
        keys["Hamburg"] = "ecdsa three"
        link._closing.set()
        link._thread.join()
        link._control()
        later = [each for process in started[2:] for each in commands(process)]
        assert later[0] == "supernode unregister 100 fedloom"
        assert "--name Hamburg" in later[1]
        assert {*link._registered} == {"Bremen", "Hamburg"}
        count = len(started)
        link._control()
        assert len(started) == count  # nothing is new
    finally:
        link.close()
    assert started[0].has_ended
    assert not link.folder.exists()


def test_a_superlink_that_ended_is_started_again(tmp_path: Path, started: list[Started]) -> None:
    link = SuperLink(tmp_path / "log", 1234, tmp_path / "server", lambda: True)
    link._closing.set()
    link._thread.join()
    assert "--insecure" in started[0].command
    started[0].has_ended = True
    link._closing.clear()
    link._look()
    assert [process.command[0] for process in started if process.command[0] != sys.executable] == [
        "flower-superlink"
    ] * 2
    assert commands(started[-1])[0].startswith("run ")
    link.close()


def test_a_superlink_is_looked_after_once_what_is_wrong_is_mended(
    tmp_path: Path, started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, say, ends no thread, which would shut nobody out any more."""
    monkeypatch.setattr(flower_processes, "AGAIN", 0.01)
    link = SuperLink(tmp_path / "log", 1234, tmp_path / "server", lambda: True)
    wrong = [OSError("no space is left"), ValueError("substring not found"), RankError("a command failed")]
    seen = list[BaseException]()

    def control(with_run: bool = False) -> None:
        if wrong:
            seen.append(wrong.pop(0))
            raise seen[-1]
        seen.append(StopIteration())

    monkeypatch.setattr(link, "_control", control)
    until(lambda: any(isinstance(each, StopIteration) for each in seen))
    link.close()
    log = (tmp_path / "log").read_text()
    assert log.count("fedloom: ") == 3
    assert "fedloom: OSError('no space is left')" in log


def test_a_superlink_that_does_not_start_says_why(
    tmp_path: Path, started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    Started.status = 1
    (tmp_path / "log").write_text("")
    with pytest.raises(RankError, match="a command to Flower's SuperLink failed: "):
        SuperLink(tmp_path / "log", 1234, tmp_path / "server", lambda: True)
    assert all(process.has_ended for process in started)
    monkeypatch.setattr(communication, "_LEAVES_WITHIN", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port, count = other.getsockname()[1], len(started)
        words = rf"port {port} of 127.0.0.1 is taken \(address already in use\), .* choose another port \(--port\)"
        with pytest.raises(SettingError, match=words):
            SuperLink(tmp_path / "log", port, tmp_path / "server", lambda: True)
    assert len(started) == count


def test_a_supernode_finds_our_client_app_and_no_other_program(tmp_path: Path, started: list[Started]) -> None:
    said = list[str]()
    node = SuperNode(
        tmp_path / "log", "fed.example.org:443", tmp_path / "device", tmp_path / "ca", tmp_path / "key", said.append
    )
    node._closing.set()
    node._thread.join()
    process, executor = started
    assert "--insecure" not in process.command
    assert process.command[1:7] == [
        "--root-certificates", f"{tmp_path}/ca", "--auth-supernode-private-key", f"{tmp_path}/key", "--superlink",
        "fed.example.org:443",
    ]  # fmt: skip
    assert process.command[7:11] == ["--isolation", "process", "--host", "127.0.0.1"]
    assert Path(executor.command[0]).name == "flower-superexec"
    assert executor.command[2:4] == ["--runtime-api-address", f"127.0.0.1:{process.command[12]}"]
    assert process.command[13:] == executor.command[4:] == ["--superexec-auth-secret-file", str(node._secret)]
    assert stat.S_IMODE(node._secret.stat().st_mode) == 0o600
    assert len(node._secret.read_bytes()) == 32
    (programs,) = process.env["PATH"].split(os.pathsep)
    assert {path.name for path in Path(programs).iterdir()} == {"flwr-clientapp"}
    assert "fedloom.deploy.flower.flower_app" in (Path(programs) / "flwr-clientapp").read_text()
    (tmp_path / "log").write_text("ApiError:2001")
    process.has_ended, node._started = True, float("-inf")
    node._look()
    assert len(started) == 4
    assert executor.has_ended  # which asked at the port of the SuperNode that has ended
    started[3].has_ended, node._started = True, float("-inf")
    node._look()
    assert len(started) == 6
    assert started[2].has_ended
    assert "the server does not let this device in" in said[0]
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600
    node.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ApiError:2001", "its key was removed or never registered"),
        ("[code: 2004] Failed to activate SuperNode", "or its last connection was cut off"),
        ("boom", "the connection to the server ended, trying again"),
    ],
)
def test_why_a_supernode_ended(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"ApiError:2001 of before\n{text}\n")
    assert words in _why_it_ended(tmp_path / "log", 24)


@pytest.mark.slow
def test_the_app_of_the_server_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's process for a message takes the ClientApp of this package, whatever the server has sent."""
    pytest.importorskip("flwr", reason="Flower is not installed")
    from fedloom.deploy.flower import flower_app

    command = importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    process = importlib.import_module("flwr.supernode.runtime.run_clientapp")

    taken = list[Any]()
    for name in ("install_from_fab", "get_load_client_app_fn"):
        monkeypatch.setattr(process, name, getattr(process, name))

    def run() -> None:
        assert process.install_from_fab(b"a program of the server", skip_prompt=True) is None
        load = process.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        taken.append(load("evil/app", "1.0.0", "hash"))

    monkeypatch.setattr(command, "flwr_clientapp", run)
    flower_app.run_client_app()
    assert taken == [flower_app.client]
    monkeypatch.delattr(process, "install_from_fab")
    with pytest.raises(SystemExit, match="this version of Flower has no install_from_fab"):
        flower_app.run_client_app()


def test_bytes_are_records_and_records_bytes() -> None:
    flwr = pytest.importorskip("flwr.app", reason="Flower is not installed")
    from fedloom.deploy.flower.flower_app import bytes_of, record_of

    for data in (b"", b"abc", os.urandom(100_000)):
        assert bytes_of(record_of(data)) == data
    for record in (flwr.RecordDict(), flwr.RecordDict({"fedloom": flwr.ConfigRecord({"fedloom": b"x"})}),
                   flwr.RecordDict({"fedloom": flwr.ArrayRecord()})):  # fmt: skip
        assert bytes_of(record) == b""


def test_flowers_grid_is_one_of_bytes() -> None:
    pytest.importorskip("flwr.app", reason="Flower is not installed")
    from fedloom.deploy.flower.flower_app import FlowerGrid, record_of

    def reply(to: str, error: Any = None) -> Any:
        told = SimpleNamespace(reply_to_message_id=to, message_id=f"answer to {to}")
        return SimpleNamespace(metadata=told, has_error=lambda: error is not None, error=error, content=record_of(b"x"))

    gone = SimpleNamespace(reason="gone", code=3)
    replies = [reply("a"), reply("b", gone)]
    grid: Any = SimpleNamespace(get_node_ids=lambda: {7}, pull_messages=lambda ids: replies)
    assert FlowerGrid(grid).nodes() == [7]
    assert FlowerGrid(grid).pull(["a", "b"]) == {"a": b"x", "b": "Flower says: gone (3)"}


def test_a_port_is_free() -> None:
    assert 0 < free_port() < 1 << 16
