"""The list of devices as a server sees it: read anew where it has changed, and kept where somebody has spoilt it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nkeys", reason="nkeys is not installed: pip install '<PATH>[nats]'")

from fedloom.deploy import certificates, watched_keys
from fedloom.deploy.nats.nats_server import make_key
from fedloom.deploy.watched_keys import WatchedKeys


def test_the_list_is_read_where_it_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server asks twice a second, and for each device that is gone: 2,000 of 2,000 took minutes."""
    certificates.add_device(tmp_path, "Kiel", first := make_key(tmp_path / "1.nk"))
    reads, told, keys = list[int](), list[str](), certificates.keys
    monkeypatch.setattr(watched_keys, "keys", lambda *a, **more: (reads.append(1), keys(*a, **more))[1])
    watched = WatchedKeys(tmp_path, told.append, nkeys=True)
    for _ in range(3):
        assert watched() == {"Kiel": first}
    assert len(reads) == 1
    certificates.add_device(tmp_path, "Jena", second := make_key(tmp_path / "2.nk"))
    assert watched() == {"Kiel": first, "Jena": second}
    assert len(reads) == 2
    monkeypatch.setattr(watched_keys, "today", lambda: "2999-01-01")  # on which an invitation has ended
    assert watched() == {"Kiel": first, "Jena": second}
    assert len(reads) == 3
    whole = (tmp_path / "devices.json").read_bytes()
    (tmp_path / "devices.json").write_text("{")
    for _ in range(3):
        assert watched() == {"Kiel": first, "Jena": second}
    assert len(reads) == 6
    (text,) = told
    assert "does not name devices" in text
    assert "nobody is let in or shut out" in text
    (tmp_path / "devices.json").write_bytes(whole)
    assert watched() == {"Kiel": first, "Jena": second}
