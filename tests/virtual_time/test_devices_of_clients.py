"""Devices by kind, and when clients are there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedloom.core.errors import SettingError
from fedloom.core.random import generator
from fedloom.virtual_time.clock import Clock
from fedloom.virtual_time.device_files import Spells
from fedloom.virtual_time.devices_of_clients import Always, Cycles, Traced, absence


def test_classes_have_their_shares() -> None:
    several = [Clock.of("classes:phone=0.7/0.02/20/5,laptop=0.3/0.002/100/40", seed, 10) for seed in range(5)]
    for of in several:
        assert sorted(of.devices.example.tolist()) == [0.002] * 3 + [0.02] * 7
    of = several[0]
    assert {(e, d, u) for e, d, u in zip(of.devices.example, of.devices.down, of.devices.up, strict=True)} == {
        (0.02, 2.5e6, 0.625e6), (0.002, 12.5e6, 5e6),
    }  # fmt: skip
    other = Clock.of("classes:phone=7/0.02/20/5,laptop=3/0.002/100/40", 1, 10)
    assert of.devices.example.tolist() != other.devices.example.tolist()


def test_classes_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(
        "name, share, example, down, up\nphone, 0.7, 0.02, 20, 5\nlaptop,0.3,0.002,100,40\n"
    )
    one = Clock.of(f"classes:{tmp_path / 'd.csv'},deadline=9", 0, 10)
    other = Clock.of("classes:phone=0.7/0.02/20/5,laptop=0.3/0.002/100/40", 0, 10)
    assert one.devices.example.tolist() == other.devices.example.tolist()
    assert one.deadline == 9.0


def test_a_trace_takes_the_seconds_that_fedscale_takes(tmp_path: Path) -> None:
    """FedScale tests get_completion_time so: computation 1000, communication 1, 1 + 1 kbit take 3 s and 2 s."""
    (tmp_path / "t.csv").write_text("client_id,computation,communication\n1,1000,1\n2,500,4\n")
    of = Clock.of(f"trace:{tmp_path / 't.csv'}", 0, 3)
    assert of.seconds(0, 0, 1, 1, 0.0, 125.0, 125.0) == pytest.approx(5.0)  # 125 bytes are 1 kbit
    assert of.seconds(1, 0, 1, 1, 0.0, 125.0, 125.0) == pytest.approx(1.5 + 0.5)
    assert of.seconds(2, 0, 1, 1, 0.0, 125.0, 125.0) == pytest.approx(5.0)  # the first row again
    of = Clock.of(f"trace:{tmp_path / 't.csv'},training=1", 0, 3)
    assert of.seconds(0, 0, 1, 1, 0.0, 0.0, 0.0) == pytest.approx(1.0)


def test_a_measured_run_gives_the_medians_of_its_devices(tmp_path: Path) -> None:
    lines = [("b", 3.0), ("a", 1.0), ("a", 9.0), ("b", 4.0), ("a", 2.0), ("c", None)]
    text = "".join(
        json.dumps({"event": "answered", "device": name} | ({} if took is None else {"seconds": took})) + "\n"
        for name, took in lines
    )
    (tmp_path / "audit.jsonl").write_text('{"event": "joined", "device": "a"}\n' + text)
    of = Clock.of(f"measured:{tmp_path},jitter=0", 0, 3)
    assert [of.seconds(k, 0, 500, 5, 1e9, 1e6, 1e6) for k in range(3)] == [2.0, 3.5, 2.0]
    assert of.files != 0
    (tmp_path / "audit.jsonl").write_text('{"event": "answered", "device": "a"}\n')
    with pytest.raises(SettingError, match="a measured clock needs answers whose seconds are known, got none in "):
        Clock.of(f"measured:{tmp_path}", 0, 3)


def test_clients_come_and_go_in_cycles() -> None:
    of, phase = Cycles(0.25, 100.0, 0, 5), generator(0, "clock", "phase").random(5)
    for k in range(5):
        for at in np.arange(0.0, 300.0, 7.0).tolist():
            there = (at / 100.0 + phase[k]) % 1.0 < 0.25
            assert bool(of.there(at)[k]) is bool(there)
            assert (of.back(k, at) == at) is bool(there)
            assert (of.leaves(k, at) > at) is bool(there)
            assert of.there(of.back(k, at))[k]
            assert of.back(k, at) - at <= 75.0 + 1e-6
            assert not of.there(of.leaves(k, at) + 1e-6)[k]
            assert of.leaves(k, of.back(k, at)) - of.back(k, at) <= 25.0 + 1e-6


def test_clients_of_a_whole_cycle_stay() -> None:
    for of in (Cycles(1.0, 100.0, 0, 2), Always(2), absence({}, 0, 2)):
        assert of.there(3.0).tolist() == [True, True]
        assert (of.back(1, 3.0), of.leaves(1, 3.0)) == (3.0, math.inf)


def test_a_trace_begins_anew_at_its_end() -> None:
    """FedScale's own test of is_active, with spells that are not over before they begin."""
    of = Traced([Spells((3.0, 6.0, 9.0), (4.0, 7.0, 10.0), 10.0), Spells((0.0, 5.0), (2.0, 10.0), 10.0)], 3)
    there = {at: of.there(at).tolist() for at in (2.0, 3.0, 6.5, 8.0, 9.5, 10.0, 15.0, 16.0)}
    assert [k[0] for k in there.values()] == [False, True, True, False, True, False, False, True]
    assert there[10.0] == [False, True, False]  # the third has the first row
    assert [of.back(0, at) for at in (2.0, 3.5, 4.0, 10.5, 18.0)] == [3.0, 3.5, 6.0, 13.0, 19.0]
    assert [of.leaves(0, at) for at in (2.0, 3.5, 16.0)] == [2.0, 4.0, 17.0]
    assert of.leaves(1, 6.0) == 12.0  # it stays over the end
    assert Traced([Spells((0.0,), (10.0,), 10.0)], 1).leaves(0, 4.0) == math.inf
    assert Traced([Spells((3.0,), (4.0,), 10.0)], 1).back(0, 5.0) == 13.0


def test_a_trace_says_when_clients_are_there(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("computation,communication\n1000,1\n")
    (tmp_path / "a.csv").write_text("client_id,active,inactive,finish_time\nx,0,5,10\nx,5,6,10\ny,7,8,10\n")
    of = Clock.of(f"trace:{tmp_path / 't.csv'},availability={tmp_path / 'a.csv'}", 0, 2)
    assert of.there(5.5).tolist() == [True, False]
    assert (of.leaves(0, 1.0), of.back(1, 1.0)) == (6.0, 7.0)  # two spells of x that touch are one
