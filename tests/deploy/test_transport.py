"""What a transport is: one class and a line, which nobody else knows."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import fedloom
import launching
from fedloom.cli.main import main
from fedloom.core.errors import SettingError
from fedloom.deploy import rank_transports
from fedloom.deploy.invitations import Invitation
from fedloom.deploy.transport import TRANSPORTS, DevicePlace, Member, ServerPlace, Transport, transport_named
from two_folders import of_loop, written

SOURCE = Path(fedloom.__file__).parent
PIPED = str(Path(__file__).parents[1] / "piped.py")


def test_every_transport_has_its_name() -> None:
    for name in TRANSPORTS:
        assert transport_named(name).name == name
    asked = [name for name, method in vars(Transport).items() if callable(method) and not name.startswith("_")]
    assert len(asked) <= 5, f"a transport has at most five methods, got {asked}"


def test_nobody_else_knows_a_transport_by_name() -> None:
    """Commands, server and device ask the table; `install` names what pip brings, which has the same names."""
    rooms = {path.relative_to(SOURCE) for path in (SOURCE / "deploy").glob("*/*.py")}
    others = [SOURCE / path for path in rooms if path.parts[1] in ("server", "device")]
    others += [p for p in (SOURCE / "deploy").glob("*.py") if p.stem not in ("transport", "rank_transports")]
    others += [p for p in (SOURCE / "cli").glob("*.py") if "fedloom.deploy" in p.read_text(encoding="utf-8")]
    assert len(others) > 25
    for path in others:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        brought = {id(a) for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "install"
                   for a in n.args}  # fmt: skip
        named = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in brought]
        assert not {*TRANSPORTS} & {value for value in named if isinstance(value, str)}, path


def test_devices_that_come_when_they_like_are_counted(tmp_path: Path) -> None:
    for name in ("flower", "nats"):
        place = ServerPlace(out=tmp_path, say=print)
        with pytest.raises(SettingError, match=r"devices come when they like: .* the run begins \(--least N\)"):
            transport_named(name).check(place)
        transport_named(name).check(ServerPlace(out=tmp_path, say=print, resume=True))


def test_rank_0_serves_and_others_join(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = list[str]()
    server, device = ServerPlace(out=tmp_path, say=said.append), DevicePlace(state=tmp_path, say=said.append)
    places: list[ServerPlace | DevicePlace] = [server, device]
    for rank, fits, other in ((0, 0, "ranks 1, 2, ..., got rank 0: run fedloom serve"), (1, 1, "got another rank")):
        monkeypatch.setattr(rank_transports, "rank_here", lambda *_, rank=rank, **__: rank)
        transport_named("gloo").check(places[fits])
        with pytest.raises(SettingError, match=other):
            transport_named("mpi").check(places[1 - fits])
    assert "for trusted networks only: nothing is encrypted" in said[0]


def test_nobody_is_invited_over_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "authority.crt").write_text("")
    invite = ["invite", "Kiel", "--certs", str(tmp_path), "--server", "a:1", "--out", str(tmp_path / "x")]
    assert main([*invite, "--transport", "mpi"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "over MPI devices have no keys, so none can be invited: choose another --transport (flower or nats)" in said
    assert not (tmp_path / "x").exists()


class Recorded(Transport):
    """What commands tell a transport."""

    name, label = "recorded", "Recorded"
    flags = frozenset({"server", "authority", "certs", "port", "host", "insecure", "insecure_anywhere"})
    invites = True
    places: ClassVar[list[ServerPlace | DevicePlace]] = []
    names: ClassVar[list[str]] = []

    def check(self, place: ServerPlace | DevicePlace) -> None:
        super().check(place)
        self.places.append(place)

    def serve(self, place: ServerPlace) -> Any:
        raise SettingError("it is served")

    def join(self, place: DevicePlace, member: Callable[[], Member]) -> bool:
        self.names.append(member().name)
        return False


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    monkeypatch.setitem(TRANSPORTS, "recorded", "recorded_transport:Recorded")
    monkeypatch.setitem(sys.modules, "recorded_transport", SimpleNamespace(Recorded=Recorded))  # type: ignore[arg-type]
    for kept in (Recorded.places, Recorded.names):
        kept.clear()
    return Recorded


def test_a_server_tells_its_transport_where_it_is(
    recorded: type[Recorded], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, rounds=1)
    serve = ["serve", "--transport", "recorded", "--settings", f"{tmp_path}/fed.toml", "--out", f"{tmp_path}/out"]
    more = ["--host", "::", "--port", "9", "--certs", f"{tmp_path}/certs", "--wait", "7", "--least", "2"]
    assert main([*serve, *more]) == 2
    assert "it is served" in capsys.readouterr().err
    (place,) = recorded.places
    assert isinstance(place, ServerPlace)
    want = ServerPlace(
        out=tmp_path / "out", certs=tmp_path / "certs", host="::", port=9, wait=7.0, least=2, say=place.say,
        refused=place.refused,
    )  # fmt: skip
    assert place == want
    place.refused("Kiel", "its key is not registered")
    assert "not registered" in (tmp_path / "out" / "audit.jsonl").read_text()
    assert main([*serve, "--insecure", "--least", "1"]) == 2
    assert isinstance(its := recorded.places[-1], ServerPlace)
    assert (its.insecure, its.certs, its.resume) == (True, None, False)


def test_a_device_tells_its_transport_the_way(
    recorded: type[Recorded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, rounds=1)
    own = ["--data", f"{tmp_path}/data0", "--state", f"{tmp_path}/state0"]
    join = ["join", "--transport", "recorded", *own]
    assert main([*join, "--server", "a:1", "--authority", f"{tmp_path}/x.crt"]) == 0
    monkeypatch.setattr(recorded, "named_by_keys", True)
    assert main([*join, "--server", "a:1"]) == 0
    assert main([*join, "--name", "Kiel"]) == 0
    assert main([*join, "--insecure"]) == 0
    assert main([*join, "--insecure-anywhere"]) == 0
    assert recorded.names == ["mine", "", "Kiel", "mine", "mine"]
    first, _, _, there, anywhere = recorded.places
    assert first == DevicePlace(
        state=tmp_path / "state0", say=first.say, server="a:1", authority=tmp_path / "x.crt", insecure=False
    )
    assert isinstance(there, DevicePlace)
    assert isinstance(anywhere, DevicePlace)
    assert (there.insecure, there.insecure_anywhere) == (True, False)
    assert (anywhere.insecure, anywhere.insecure_anywhere) == (False, True)


def test_an_invitation_is_for_a_transport_that_invites(recorded: type[Recorded], tmp_path: Path) -> None:
    path = tmp_path / "Kiel.invitation"
    content = {"format": 1, "name": "Kiel", "server": "a:1", "authority": "", "key": "", "until": "2999-01-01"}
    for name, invites in (("recorded", True), ("gloo", False), ("other", False)):
        path.write_text(json.dumps({**content, "transport": name}))
        path.chmod(0o600)
        if invites:
            assert Invitation.read(path).transport == name
        else:
            with pytest.raises(SettingError, match=f"is no invitation .transport is '{name}'"):
                Invitation.read(path)


@pytest.mark.slow
def test_a_transport_from_outside_carries_a_run(tmp_path: Path) -> None:
    """`tests/piped.py` is all that it needs."""
    federation, port = written(tmp_path, rounds=2), str(launching.free_port())
    serve = ["--settings", f"{tmp_path}/fed.toml", "--out", f"{tmp_path}/out", "--test", f"{tmp_path}/test.npz"]
    server = [sys.executable, PIPED, "serve", "--transport", "pipes", "--port", port, "--least", "2", *serve]
    processes = [subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)]
    assert processes[0].stdout is not None
    said = list[str]()
    while "waiting at a pipe" not in "".join(said):
        said.append(processes[0].stdout.readline())
        assert said[-1], said
    for k in range(2):
        join = [sys.executable, PIPED, "join", "--transport", "pipes", "--server", f"127.0.0.1:{port}"]
        own = ["--data", f"{tmp_path}/data{k}", "--state", f"{tmp_path}/state{k}"]
        processes.append(subprocess.Popen([*join, *own], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    found = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], found
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == of_loop(tmp_path, federation)
