"""What is said and refused on both sides of NATS, without a server."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")

from fedloom.core.errors import RankError, SettingError
from fedloom.deploy.nats import nats_transport
from fedloom.deploy.nats.nats_transport import OverNats
from fedloom.deploy.transport import DevicePlace, ServerPlace


def test_a_server_needs_certificates_and_notes_whom_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    refused: list[tuple[str, str]] = []
    bare = ServerPlace(out=tmp_path, say=said.append, refused=lambda who, why: refused.append((who, why)))
    with pytest.raises(SettingError, match="give --certs DIR"), OverNats().serve(bare):
        pass
    given = SimpleNamespace(**{**vars(bare), "certs": tmp_path, "host": "0.0.0.0", "least": 3, "wait": 60.0})
    files: Any = {"server_files": (("ca", "cert", "key"), None), "who_may_connect": "all", "name_of_server": "here"}
    for name, value in files.items():
        monkeypatch.setattr(nats_transport.certificates, name, lambda folder, value=value: value)
    ended: list[str] = []
    server = SimpleNamespace(key="k", shut_out="out", close=lambda: ended.append("server"))
    monkeypatch.setattr(nats_transport, "WatchedKeys", lambda *args, **more: "keys")
    monkeypatch.setattr(nats_transport, "NatsServer", lambda *args: vars(server).update(refuse=args[5]) or server)
    manager = SimpleNamespace(end=lambda: ended.append("connections"))
    monkeypatch.setattr(nats_transport, "NatsManager", lambda door: vars(manager).update(door=door) or manager)
    with OverNats().serve(given) as connections:  # type: ignore[arg-type]
        server.refuse("device9", "an unknown key")
        assert (connections.registered, connections.flooded) == ("keys", "out")
        assert "tls://127.0.0.1:8443" in str(manager.door)
        assert said[-1] == "waiting for 3 devices at 0.0.0.0:8443, 60 s at most (--wait)"
        assert not ended
    assert refused == [("device9", "an unknown key")]
    assert ended == ["connections", "server"]


def test_a_device_says_an_error_once_and_joins_again_without_enrolling_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    errors = ["no route", "no route", "no route"]
    ends: list[bool | None] = [None, True]  # the server is gone, then ends the run

    def manager(door: Any) -> Any:
        if errors:
            raise RankError(errors.pop())
        return SimpleNamespace(end=lambda: None)

    def take_part(connection: Any, member: Any, *changed: Any) -> bool:
        if (end := ends.pop(0)) is None:
            raise RankError("gone")
        return end

    @contextmanager
    def nothing() -> Any:
        yield

    monkeypatch.setattr(nats_transport, "NatsManager", manager)
    monkeypatch.setattr(nats_transport, "take_part", take_part)
    monkeypatch.setattr(nats_transport, "wait_for_server", lambda *args: None)
    monkeypatch.setattr(nats_transport, "authority_of", lambda place: "ca")
    monkeypatch.setattr(nats_transport, "_PAUSE", 0)
    monkeypatch.setattr(OverNats, "new_key", lambda self, folder: (folder / "key", "PUBLIC"))
    joining: Any = SimpleNamespace(key=None, name="device1", begins="begins")
    place = DevicePlace(state=tmp_path, say=said.append, server="here:8443", joining=joining)
    member: Any = SimpleNamespace(name="device1", waits_at=lambda server: f"waiting at {server}", changed=lambda: False)
    assert OverNats().join(place, lambda: member) is True
    assert said == [
        "key of this device: PUBLIC", "no route; trying again", "waiting at here:8443",
        "the server is gone: joining again once it is there", "waiting at here:8443",
    ]  # fmt: skip
