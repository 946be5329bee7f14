"""Devices that are not waited for: the order in which answers come, kills, and the simulation by the log."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from arriving import Arriving
from fedloom.coordinator.history import History
from fedloom.core.errors import RankError, SettingError, SettingWarning
from fedloom.deploy.device import Limits, Reading
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import RankFleet
from fedloom.storage.codec import digest
from fedloom.virtual_time import unwaited_devices
from fedloom.virtual_time.unwaited_devices import RealArrivals, UnwaitedDevices
from flower_in_memory import Flower, serve
from tiny import LOCAL

ORDER = (3, 1, 0, 2, 2, 4, 5, 3, 1, 1, 0)
OTHER = (5, 4, 3, 2, 1, 0) * 3
FEDAVG, PFEDSD = fl.FedAvg(local=LOCAL), fl.PFedSD(local=LOCAL)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealArrivals, "pause", 0.001)


def same(ours: History, other: History) -> None:
    """The same server, bit for bit, and the same records but for the devices that were not free to be evaluated."""
    assert digest(ours.server) == digest(other.server)
    for mine, its in zip(ours.metrics, other.metrics, strict=True):
        for name in ("clients", "failed", "bytes_up", "bytes_down", "accuracy", "staleness", "under_way", "train_loss"):
            assert mine.get(name) == its.get(name), name


def killed(ours: Arriving, round: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until the log has this round, from 0, and the model has not moved yet."""
    step = UnwaitedDevices.step

    def stop(self: Any, engine: Any, server: Any, clients: Sequence[int], number: int) -> dict[str, Any]:
        if number == round:
            raise KeyboardInterrupt
        return step(self, engine, server, clients, number)

    with monkeypatch.context() as patched:
        patched.setattr(UnwaitedDevices, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            ours.run()


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        (PFEDSD, {}),
        (FEDAVG, {"asynchrony": "fedasync:alpha=0.6"}),
        (FEDAVG, {"asynchrony": "deadline:seconds=0.001", "bound": "clip:median:5"}),
        (FEDAVG, {"compression": "topk:0.3+bits:4"}),
        (FEDAVG, {"compression_down": "bits:8", "asynchrony": "fedbuff:size=2,staleness=constant"}),
    ],
)
def test_a_simulation_by_the_log_has_the_bits_of_the_devices(
    algorithm: Any, more: dict[str, Any], tmp_path: Path
) -> None:
    ours = Arriving(tmp_path, algorithm, ORDER, **more)
    history = ours.run()
    assert history.series("staleness_most").max() > 1
    assert "virtual_seconds" not in history.metrics[-1]
    same(history, ours.replayed())
    *lines, last = ours.log()
    assert [line["version"] for line in lines] == [*range(6)]
    assert last == {"version": 6, "model": digest(history.server)}


def test_who_comes_first_is_first_in_the_log(tmp_path: Path) -> None:
    ours = Arriving(tmp_path, FEDAVG, ORDER, rounds=3)
    ours.run()
    assert ours.arrivals() == [[(3, 0), (1, 0)], [(0, 0), (2, 0)], [(4, 1), (2, 2)]]
    assert [line["started"] for line in ours.log()[:3]] == [[1, 2, 3, 0, 5], [3, 4], [1, 2]]


@pytest.mark.some(1)
@pytest.mark.parametrize("every", [3, 1])
def test_a_killed_server_follows_its_log(every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions that were begun are computed of the same answers, whoever comes first now; devices keep old states."""
    ours = Arriving(tmp_path, PFEDSD, ORDER, checkpoint_every=every)
    killed(ours, 4, monkeypatch)
    before = ours.log()
    ours.begin(OTHER)
    history = ours.run(resume=True)
    assert ours.log()[: len(before)] == before
    assert [line["version"] for line in ours.log()] == [*range(7)]  # none was begun anew
    asked = [(k, since) for k, since in ours.wires.asked if since < 5]
    assert asked == sorted({*asked}, key=asked.index)  # each once
    assert {(0, 4), (1, 2)} <= {*asked}  # who came in the version that was begun
    same(history, ours.replayed())


@pytest.mark.slow
def test_a_slow_device_does_not_hold_up_the_others(tmp_path: Path) -> None:
    ours = Arriving(tmp_path, FEDAVG, ORDER, eval_every=1)
    ours.wires.silent = {2}
    history = ours.run()
    assert all(2 not in record["clients"] for record in history.metrics[1:])
    assert len(history.metrics) == 7
    assert [k for k, _ in ours.wires.asked].count(2) == 1
    assert '"lost"' not in (tmp_path / "audit.jsonl").read_text()  # nobody asks it to be evaluated
    assert all(2 not in record["personal_by_client"] for record in history.metrics[1:])
    same(history, ours.replayed())


def test_who_is_lost_frees_its_place_and_is_named(tmp_path: Path) -> None:
    ours = Arriving(tmp_path, FEDAVG, ORDER)
    ours.wires.gone = {1}
    history = ours.run()
    assert history.metrics[1]["failed"] == {"1": "lost: its connection ended, or it sent too much"}
    assert ours.log()[0]["lost"] == [[1, 0, "lost: its connection ended, or it sent too much"]]
    assert history.metrics[1]["under_way"] == 3.0  # its place, and that of who came first, were given to others
    same(history, ours.replayed())


@pytest.mark.slow
def test_a_place_is_given_away_and_a_late_answer_is_dropped(tmp_path: Path) -> None:
    ours = Arriving(tmp_path, FEDAVG, (), deadline=0.2, cohort_size=1, asynchrony="fedbuff:size=1", rounds=4)
    ours.wires.silent = {1}
    job = ours.job()
    while_away: list[bool] = []

    def bring(history: History) -> None:
        if len(history.metrics) == 3:
            while_away.append(ours.registry.names[1] in ours.fleet.connected())
            ours.wires.answers[2].append(ours.wires.withheld.pop(1))
            ours.wires.silent.clear()

    history = job.run(tmp_path / "out", on_round=bring)
    assert [record["failed"] for record in history.metrics[1:]] == [{}, {"1": "lost: no answer within 0.2 s"}, {}, {}]
    assert while_away == [False]
    log = (tmp_path / "audit.jsonl").read_text()
    assert log.count("its answer came after the deadline, and was dropped") == 1
    same(history, ours.replayed())


@pytest.mark.slow
def test_who_was_under_way_and_does_not_come_back_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Arriving(tmp_path, FEDAVG, ORDER)
    ours.wires.silent = {5}
    killed(ours, 3, monkeypatch)
    monkeypatch.setattr(unwaited_devices, "RETURN", 0.0)
    ours.begin(ORDER)
    del ours.fleet.ranks[ours.registry.names[5]]
    history = ours.run(resume=True)
    assert "lost: it has not come back" in {why for record in history.metrics[1:] for why in record["failed"].values()}
    same(history, ours.replayed())


@pytest.mark.slow
def test_a_version_is_begun_anew_where_its_devices_do_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Arriving(tmp_path, PFEDSD, ORDER, checkpoint_every=2)
    killed(ours, 4, monkeypatch)
    (who, _), *_ = ours.arrivals()[4]
    monkeypatch.setattr(unwaited_devices, "RETURN", 0.0)
    ours.begin(OTHER)
    del ours.fleet.ranks[ours.registry.names[who]]
    with pytest.warns(
        SettingWarning, match=r"in round 5 before .* does not come back \(1 of 2\), so the round is begun"
    ):
        history = ours.run(resume=True)
    lines = ours.log()
    assert [line["version"] for line in lines] == [0, 1, 2, 3, 4, 4, 5, 6]
    assert who not in dict(ours.arrivals()[4])
    same(history, ours.replayed())


@pytest.mark.slow
def test_other_bits_than_before_the_kill_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Arriving(tmp_path, FEDAVG, ORDER)
    killed(ours, 2, monkeypatch)
    log = tmp_path / "out" / "arrivals.jsonl"
    model = ours.log()[2]["model"]
    log.write_text(log.read_text().replace(model, "0" * 32))
    ours.begin(OTHER)
    with pytest.warns(SettingWarning, match=r"version 2 of the model has other bits than before the server was killed"):
        history = ours.run(resume=True)
    same(history, ours.replayed())


@pytest.mark.slow
def test_half_a_line_of_a_killed_server_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Arriving(tmp_path, FEDAVG, ORDER)
    killed(ours, 3, monkeypatch)
    log = tmp_path / "out" / "arrivals.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    ours.begin(OTHER)
    history = ours.run(resume=True)
    assert [line["version"] for line in ours.log()] == [*range(7)]
    same(history, ours.replayed())


@pytest.mark.slow
def test_a_run_goes_on_beyond_its_end(tmp_path: Path) -> None:
    ours = Arriving(tmp_path, FEDAVG, ORDER, rounds=3)
    ours.run()
    ours.settings = fl.RunSettings(**{**vars(ours.settings), "rounds": 5})
    ours.begin(OTHER)
    history = ours.run(resume=True)
    assert len(history.metrics) == 6
    same(history, ours.replayed())


@pytest.mark.slow
def test_where_all_decline_the_server_waits_no_longer_than_for_devices(tmp_path: Path) -> None:
    ours = Arriving(tmp_path, FEDAVG, (), rounds=2)
    for device in ours.devices:
        device.monitor, device.start_limits = lambda: Reading(battery=0.1), Limits(battery=0.5)
    ours.fleet.wait = 0.2
    with pytest.raises(RankError, match=r"no device has answered within 0.2 s: continue with --resume"):
        ours.run()
    assert "battery is 0.1, at least 0.5 is asked for" in (tmp_path / "audit.jsonl").read_text()
    assert len(ours.wires.asked) > 6  # each of them more than once


def test_fewer_devices_than_a_version_takes_make_it_of_those_that_are_there(tmp_path: Path) -> None:
    ours = Arriving(tmp_path, FEDAVG, (), asynchrony="fedbuff:size=4", rounds=2)
    for k in (0, 1, 2, 3):
        del ours.fleet.ranks[ours.registry.names[k]]
    history = ours.run()
    assert [record["clients"] for record in history.metrics[1:]] == [[4, 5], [4, 5]]
    same(history, ours.replayed())


@pytest.mark.slow
def test_over_flower_a_slow_device_is_not_waited_for_either(tmp_path: Path) -> None:
    """Devices in threads, each behind its relay; one takes so long that others answer many times meanwhile."""
    ours, flower, alone = Arriving(tmp_path, FEDAVG, (), rounds=12), Flower(6), threading.Lock()
    names = ours.registry.names

    def answer(k: int, data: bytes) -> bytes:
        if data == b"hello":
            return names[k].encode()
        if k == 2 and b'"local_update"' in data:
            time.sleep(3.0)
        with alone:  # they share their networks
            return bytes(ours.devices[k](data))

    for k in range(6):
        serve(flower.servers[k], functools.partial(answer, k))
    fleet = RankFleet(flower.connections, Audit(tmp_path / "audit.jsonl"))
    fleet.names, fleet.tokens = names, ours.fleet.tokens
    answers = fleet.handshake(b"hello", 30, lambda got: len(got) == 6)
    fleet.ranks = {name.decode(): rank for rank, name in answers.items()}
    ours.fleet = fleet
    try:
        history = ours.run()
    finally:
        flower.close()
    came = [k for version in ours.arrivals() for k, _ in version]
    assert any(2 in line["started"] for line in ours.log()[:-1])
    assert came.count(2) < 3
    assert len(came) == 24
    same(history, ours.replayed())


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (
            {"clock": "lognormal:example=0.01"},
            r"devices take real time, got clock = 'lognormal:example=0.01': leave it",
        ),
        ({"asynchrony": "fedbuff:size=2,arrivals=x"}, r"devices come as they do, got asynchrony = .* with a log"),
        (
            {"secure_aggregation": "range=8", "on_nonfinite": "stop"},
            r"weighs each upload by its age, got secure_aggregation = 'range=8'",
        ),
        ({"stateless": True}, r"moves states as answers come, got stateless = true"),
        ({"spares": 1}, r"waits for nobody whom one could replace, got spares = 1"),
    ],
)
def test_what_devices_cannot_be_with_is_refused(more: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=match):
        Arriving(tmp_path, FEDAVG, (), **more).job().check()
