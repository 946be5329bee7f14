"""Secure aggregation over devices: the bits of the simulation, who is lost at which message, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_devices
import torch

import fedloom as fl
from fedloom.core import tree
from fedloom.core.errors import RefusedError
from fedloom.core.types import Weighted
from fedloom.deploy.device.device_masks import DeviceMasks
from fedloom.deploy.registration import MASKED
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message_bytes import head_of
from fedloom.privacy.secure_sums import InFixedPoint, SecureAggregation
from fedloom.testing.compare import same
from fedloom.testing.in_process import DevicesInProcess, InProcess
from tiny import LOCAL, federation, mlp, population
from uploads_searched import found, in_words, pieces_of, uploads_seen

STAGES = ("advertise", "share", "mask", "unmask")
CLIENTS = 10


class Wires(InProcess):
    """Wires that keep all bytes, and lose the devices of `lost` from a message on.

    Who is lost at unmask has sent its numbers; a device that is `killed` loses its secrets and is there again.
    """

    def __init__(self, engine: DevicesInProcess, lose: Callable[[str, int], str | None]) -> None:
        self.engine, self.lose, self.bytes = engine, lose, list[bytes]()
        super().__init__(engine.fleet.manager.answering)  # type: ignore[union-attr, attr-defined]

    def post(self, rank: int, message: bytes) -> None:
        head = head_of(message[16:])
        stage = head.get("masked", {}).get("stage", "mask") if "masked" in head else ""
        fate = self.lose(stage, rank - 1) if stage else None
        self.bytes.append(message)
        if fate == "killed":
            self.engine.controllers.pop(rank - 1, None)
        if fate in ("lost", "unheard"):
            if fate == "unheard":  # it has answered, and the answer does not arrive
                self.answering[rank - 1](message)
            self.answers[rank].append(b"")
            return
        super().post(rank, message)
        self.bytes += [bytes(each) for each in self.answers[rank]]


def computed(
    algorithm: Any,
    kind: Any = DevicesInProcess,
    text: str = "range=8",
    lose: Callable[[str, int], str | None] = lambda stage, k: None,
    rounds: int = 2,
) -> tuple[Any, Any, Any, list[Any]]:
    """(server states after each round, engine, wires, traffic of each round)."""
    link = () if text == "none" else (InFixedPoint(SecureAggregation.read(text)),)
    engine = kind(population(mlp, federation(clients=CLIENTS)), algorithm, Options(links=link))
    wires = None
    if kind is DevicesInProcess:
        wires = engine.fleet.manager = Wires(engine, lose)
    server, out, traffic = engine.init(), list[Any](), list[Any]()
    for t in range(rounds):
        server = engine.round(server, range(CLIENTS), t)
        out.append(server)
        traffic.append(engine.traffic)
    return out, engine, wires, traffic


def flat(server: Any) -> Any:
    return torch.cat([t.double().flatten() for t in tree.leaves(server)])


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", [fl.FedAvg, fl.Scaffold, fl.PFedSD])
def test_devices_have_the_bits_of_the_simulation(algorithm: Any) -> None:
    made = algorithm(local=LOCAL)
    found, _, _, traffic = computed(made)
    want, _, _, simulated = computed(made, Loop)
    assert torch.equal(flat(found), flat(want))
    assert not any(each.failed for each in traffic)
    assert [t.up for t in traffic] == [t.up for t in simulated]


@pytest.mark.some(6)
@pytest.mark.parametrize("fate", ["lost", "unheard", "killed"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("count", [1, 3])
def test_devices_are_lost_at_each_message(stage: str, count: int, fate: str) -> None:
    """Of ten, each has nine neighbours, of whom five must stay; who is lost after its numbers came is in the sum."""
    made = fl.Scaffold(local=LOCAL)

    def lose(at: str, k: int) -> str | None:
        return fate if k in range(2, 2 + count) and (at == stage or (fate != "killed" and after(at, stage))) else None

    gone = set() if stage == "unmask" or (stage, fate) == ("advertise", "killed") else {*range(2, 2 + count)}
    (found,), engine, _, (traffic,) = computed(made, lose=lose, rounds=1)
    want = simulated(made, gone)
    assert torch.equal(flat(found), flat(want))
    assert {failure.client for failure in traffic.failed} == gone
    assert {k for k in engine.states if k < CLIENTS} == {*range(CLIENTS)} - gone


def after(one: str, other: str) -> bool:
    return STAGES.index(one) > STAGES.index(other)


def simulated(algorithm: Any, gone: set[int]) -> Any:
    options = Options(
        links=(InFixedPoint(SecureAggregation(8.0)),), faults=lambda t, e, k: "lost" if k in gone else None
    )
    engine = Loop(population(mlp, federation(clients=CLIENTS)), algorithm, options)
    return engine.round(engine.init(), range(CLIENTS), 0)


@pytest.mark.parametrize("stage", STAGES)
def test_a_sum_that_is_refused_leaves_everything_as_it_was(stage: str) -> None:
    """At the last message too, when the states of all devices are on offer."""
    made = fl.PFedSD(local=LOCAL)
    (found,), engine, _, (traffic,) = computed(
        made, lose=lambda at, k: "lost" if k < 6 and (at == stage or after(at, stage)) else None, rounds=1
    )
    assert torch.equal(flat(found), flat(engine.init()))
    assert not engine.states
    assert {failure.client for failure in traffic.failed} == {*range(CLIENTS)}
    assert "there is no sum: a masked sum needs" in traffic.failed[-1].reason
    assert traffic.unanswered


def test_a_false_sum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedloom.deploy.device import device_masks

    true = DeviceMasks.masked

    def lies(self: DeviceMasks, head: Any, parts: Any) -> Any:
        out = true(self, head, parts)
        return {**out, "upload": out["upload"] + (1 << 30)} if self.client == 3 else out

    monkeypatch.setattr(device_masks.DeviceMasks, "masked", lies)
    (found,), engine, _, (traffic,) = computed(fl.FedAvg(local=LOCAL), rounds=1)
    assert torch.equal(flat(found), flat(engine.init()))
    assert "the sum is beyond what numbers up to 8 and weights up to" in traffic.failed[0].reason


def test_no_message_has_a_piece_of_an_upload() -> None:
    """Four numbers in a row of an upload, as floats or words, are in no message; without masks all are found."""
    made, pieces = fl.FedAvg(local=LOCAL), set[bytes]()
    fixed = in_words("range=8", federation(clients=CLIENTS).partition.sizes.tolist())
    with uploads_seen(lambda t, k, upload: pieces.update(pieces_of(upload, fixed)), lambda t, sent: None, ()):
        computed(made, Loop, rounds=1)
    _, _, masked, _ = computed(made, rounds=1)
    _, _, plain, _ = computed(made, text="none", rounds=1)
    assert not found(pieces, b"".join(masked.bytes))
    assert len(found(pieces, b"".join(plain.bytes))) > len(pieces) / 6  # one of three forms


class Fleetwide(test_devices.Fleetwide):
    """Six devices whose uploads are masked."""

    def controller(self, people: Any, k: int) -> Any:
        made = super().controller(people, k)
        made.masks = DeviceMasks.of(self.settings, made.runtime)
        return made


@pytest.mark.slow
def test_a_whole_run_has_the_records_of_the_simulation(tmp_path: Path) -> None:
    asked: Any = {"cohort_size": 5, "on_nonfinite": "stop", "secure_aggregation": "range=8", "rounds": 3}
    made = fl.FedAvg(local=LOCAL)
    history = Fleetwide(tmp_path / "devices", made, **asked).job().run(tmp_path / "run")
    want = test_devices.of_loop(made, **asked)
    same(want.server, history.server, "the server state")
    assert history.metrics == want.metrics


@pytest.mark.parametrize(
    ("more", "algorithm", "why"),
    [
        ({"bound": "refuse:median:5"}, fl.FedAvg, "shows the server no single upload, got bound = 'refuse:median:5'"),
        ({"on_nonfinite": "refuse"}, fl.FedAvg, "shows the server no single upload, got on_nonfinite = 'refuse'"),
        ({"aggregator": "median"}, fl.FedAvg, "shows the server no single upload, got aggregator = 'median'"),
        ({"stateless": True}, fl.PFedSD, "shows the server no client's state, got stateless = true"),
        (
            {"privacy": "central:noise=1,delta=1e-5,clip=1"},
            fl.FedAvg,
            "leaves nobody but clients to clip and add noise",
        ),
        ({"cohort_size": 2}, fl.FedAvg, "adds up 3 clients or more, and a round asks 2"),
        ({}, fl.IFCA, "only the mean is used, and IFCA needs each: leave secure_aggregation out"),
        ({}, fl.QFedAvg, r"refuses client \d: its upload weighs .*, and secure_aggregation takes at most 1"),
        ({"secure_aggregation": "range=0.001"}, fl.FedAvg, r"refuses client \d: its upload has a number of"),
    ],
)
def test_what_needs_single_uploads_is_refused_before_a_device_is_asked(
    more: Any, algorithm: Any, why: str, tmp_path: Path
) -> None:
    asked = {"cohort_size": 5, "on_nonfinite": "stop", "secure_aggregation": "range=8", **more}
    ours = Fleetwide(tmp_path, algorithm(local=LOCAL), **asked)
    with pytest.raises(fl.SettingError, match=why):
        ours.job().check()


# ---- a device


def masks_of(algorithm: Any) -> DeviceMasks:
    options = Options(links=(InFixedPoint(SecureAggregation(8.0)),))
    masks = DevicesInProcess(population(mlp, federation(clients=CLIENTS)), algorithm, options).controller(0).masks
    assert masks is not None
    return masks


def test_a_device_sends_nothing_that_would_show_its_model() -> None:
    masks = masks_of(fl.PFedSD(local=LOCAL))
    for head in (
        {"method": "local_update", "exchange": 0},
        {"method": "local_update", "exchange": "evaluate"},
        {"method": "personal", "exchange": "evaluate", "split": None},
        {"method": MASKED, "exchange": 0},
    ):
        with pytest.raises(RefusedError, match="would show what this device has learnt: nothing is sent"):
            masks.check(head)
    masks.check({"method": "personal", "exchange": "evaluate", "split": "test"})
    masks.check({"method": "personal", "exchange": "evaluate", "split": None, "final": {"kind": "personal"}})


def test_secrets_serve_once_and_messages_are_digits() -> None:
    masks = masks_of(fl.FedAvg(local=LOCAL))
    begin = {"stage": "advertise", "session": "00" * 16, "words": 4, "bits": 32, "neighbours": 4, "threshold": 3}
    for said, why in (
        (5, "hexadecimal digits, got None"),
        ({"message": "xy"}, "hexadecimal digits, got 'xy'"),
        ({"stage": "boo"}, "a masked sum has no message 'boo'"),
        ({"stage": "share"}, "has no secrets of this sum, or has used them: it was started again"),
        ({"stage": "unmask"}, "has no secrets of this sum"),
    ):
        with pytest.raises(RefusedError, match=why):
            masks.answer(said)
    masks.answer(begin)
    with pytest.raises(RefusedError, match="a client has 3 to 4 neighbours"):
        masks.answer({"stage": "share"})
    with pytest.raises(RefusedError, match="has used them"):  # by the message that was refused
        masks.answer({"stage": "share"})


@pytest.mark.parametrize(("value", "weight", "why"), [(9.0, 1.0, "leaves the range=8"), (1.0, 1e6, "weighs more than")])
def test_a_device_looks_at_its_own_range_and_weight_and_tells_no_number(
    value: float, weight: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = DeviceMasks.masked

    def wild(self: DeviceMasks, head: Any, parts: Any) -> Any:
        if self.client != 3:
            return true(self, head, parts)
        nodes, spec = tree.flatten(parts["upload"], is_leaf=lambda n: isinstance(n, Weighted))
        nodes = [Weighted(tree.map_tree(lambda t: t * 0 + value, n.value), n.weight * weight) for n in nodes]
        return true(self, head, {**parts, "upload": tree.unflatten(nodes, spec)})

    monkeypatch.setattr(DeviceMasks, "masked", wild)
    made = fl.FedAvg(local=LOCAL)
    (found,), _, _, (traffic,) = computed(made, rounds=1)
    assert torch.equal(flat(found), flat(simulated(made, {3})))
    ((client, reason),) = [(failure.client, failure.reason) for failure in traffic.failed]
    assert client == 3
    assert why in reason
    assert "9" not in reason
