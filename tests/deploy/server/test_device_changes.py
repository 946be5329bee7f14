"""Devices that come, leave and bring other examples while a run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from changing_devices import FIRST, Brought, Place, simulated
from fedloom.coordinator.rounds import Coordinator
from fedloom.coordinator.verification import verify
from fedloom.data import NEVER
from fedloom.deploy.server.device_changes import DeviceChanges
from fedloom.deploy.server.device_events import Event
from fedloom.testing.compare import same

PFEDSD = {"algorithm": "pfedsd"}


def losses(history: Any) -> list[Any]:
    """Return who was asked in each round, and the training loss."""
    return [(sorted(m["clients"]), m["train_loss"]) for m in history.metrics[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("words", [{}, PFEDSD])
def test_a_device_that_comes_later_is_a_client_that_was_not_asked_before(words: dict[str, Any], tmp_path: Path) -> None:
    place = Place(tmp_path, words)
    for k in range(3):
        place.come(k)
    history = place.run(3, {2: place.coming(7)})
    assert place.events() == [(4, "came", 3)]
    want = simulated(words, dict.fromkeys((0, 1, 2, 7), FIRST), {3: (4, NEVER)})
    assert any(3 in clients for clients, _ in losses(want))
    assert losses(history) == losses(want)
    same(want.server, history.server, "the server state")
    assert history.metrics[-1]["personal_by_client"] == want.metrics[-1]["personal_by_client"]
    assert verify(place.out).whole
    told = json.loads((place.out / "federation.json").read_text())
    assert (told["clients"], told["events"]) == (4, [{"round": 4, "event": "came", "client": 3}])
    assert place.said == [f"from round 4 on: device {7:032x} (site7) comes as client 3"]
    assert [(line["round"], line["client"], line["name"]) for line in place.audit("came")] == [(4, 3, "site7")]


@pytest.mark.slow
def test_many_that_come_at_once_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is tried for all of them, and only where one does not fit for each: 500 held a run up for half a minute."""
    tried, of = list[Any](), DeviceChanges._of
    monkeypatch.setattr(DeviceChanges, "_of", lambda self, registry: (tried.append(registry), of(self, registry))[1])
    place = Place(tmp_path)
    for k in range(3):
        place.come(k)
    place.run(3, {1: lambda: [place.coming(k)() for k in (7, 8, 9)]})
    assert place.events() == [(3, "came", 3), (3, "came", 4), (3, "came", 5)]
    assert len(tried) == 2


@pytest.mark.slow
def test_a_device_whose_key_is_removed_is_drawn_no_more_until_it_is_back(tmp_path: Path) -> None:
    place = Place(tmp_path, {"run.rounds": 8})
    place.wires.keys = {f"site{k}" for k in range(3)}
    for k in range(3):
        place.come(k)
    keys = place.wires.keys
    history = place.run(3, {2: lambda: keys.discard("site1"), 5: lambda: keys.add("site1")})
    assert place.events() == [(4, "removed", 1), (7, "back", 1)]
    drawn = [sorted(m["clients"]) for m in history.metrics[1:]]
    assert drawn[2:6] == [[0, 2]] * 4
    assert any(1 in clients for clients in drawn[6:])
    assert not any(m["failed"] for m in history.metrics[1:])
    assert verify(place.out).whole


@pytest.mark.slow
@pytest.mark.parametrize(("words", "count"), [({}, 40), (PFEDSD, 50), ({"algorithm": "apfl_ni"}, 30)])
def test_a_device_brings_more_and_its_past_model_teaches(words: dict[str, Any], count: int, tmp_path: Path) -> None:
    """The bits of a simulation in which its examples arrive in that round."""
    place = Place(tmp_path, words)
    for k in range(3):
        place.come(k)
    history = place.run(3, {2: place.coming(1, count=count)})
    assert place.events() == [(4, "renewed", 1)]
    sizes = {0: FIRST, 1: count, 2: FIRST}
    want = simulated(words, sizes, arrives=Brought(size=count, since=4), lost=[(3, 1)])
    assert losses(history) == losses(want)
    same(want.server, history.server, "the server state")
    assert verify(place.out).whole
    assert place.said == [f"from round 4 on: device {1:032x} (site1) brings other examples, {count} to train on"]


@pytest.mark.slow
def test_a_killed_server_knows_who_was_there_when(tmp_path: Path) -> None:
    """Killed after the round before which one came, after one has brought fewer, and it goes on with the same bits."""

    def kill() -> None:
        raise KeyboardInterrupt

    whole = Place(tmp_path / "whole", PFEDSD)
    place = Place(tmp_path / "killed", PFEDSD)
    for each in (whole, place):
        for k in range(3):
            each.come(k)
    want = whole.run(3, {1: whole.coming(7), 3: whole.coming(0, count=12)})
    with pytest.raises(KeyboardInterrupt):
        place.run(3, {1: place.coming(7), 2: kill})
    for k in (0, 1, 2, 7):
        place.come(k)
    with pytest.raises(KeyboardInterrupt):
        place.run(3, {3: place.coming(0, count=12), 5: kill}, resume=True)
    counts = {0: 12}
    for k in (0, 1, 2, 7):
        place.come(k, count=counts.get(k, FIRST))
    got = place.run(3, resume=True)
    assert place.events() == whole.events() == [(3, "came", 3), (5, "renewed", 0)]
    assert losses(got) == losses(want)
    same(want.server, got.server, "the server state")
    assert verify(place.out).whole


@pytest.mark.slow
def test_a_sixth_site_joins_a_run_that_is_resumed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.come(0), place.come(1)
    place.run(2)
    place.words["run.rounds"] = 9
    for k in (0, 1, 2):
        place.come(k)
    history = place.run(3, resume=True)
    assert place.events() == [(7, "came", 2)]
    assert any(2 in m["clients"] for m in history.metrics[7:])
    for k in (0, 5):
        place.come(k)
    place.run(2, resume=True)
    assert place.refused(5).endswith("all 9 rounds of this run are done, so nobody comes later")


@pytest.mark.slow
def test_devices_that_all_bring_more_do_not_wait_for_each_other(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.come(0), place.come(1)

    def renew() -> None:
        place.come(0, count=40), place.come(1, count=30)

    history = place.run(2, {2: renew})
    assert place.events() == [(3, "renewed", 0), (3, "renewed", 1)]
    assert len(history.metrics) == 7


def test_who_has_not_come_is_not_drawn(tmp_path: Path) -> None:
    """Where rounds before that are computed, as from an earlier checkpoint."""
    place = Place(tmp_path)
    place.come(0), place.come(1)
    changes = place.changes(2)
    registry = changes.admission.registry
    came = replace(registry.devices[0], id=f"{7:032x}", name="site7")
    changes.admission.registry = registry.with_event(Event(3, "came", 2, came)).with_event(Event(5, "removed", 0))
    engine = Coordinator(changes._of(changes.admission.registry), trains=False).engine
    assert [engine.absent(round) for round in range(5)] == [{2}, {2}, set(), set(), {0}]


# ---- who cannot come, or not with these examples


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": "fedfomo", "data.val_fraction": 0.2}, "since FedFomo keeps "),
    (
        {"algorithm": "apfl_ni", "apfl_ni.mu": 1.0},
        "since APFLNi keeps version at the server, with places for those with which it began: begin",
    ),
    (
        {"run.privacy": "central:noise=1,delta=1e-5,clip=0.5"},
        "no device comes later to this run or brings other examples, since privacy = central:noise=1,delta=1e-5,cl",
    ),
    (
        {"algorithm": "pfedsd", "pfedsd.teacher_store": "soft_predictions", "run.stateless": True},
        f"{7:032x} (site7) brings 40 examples to train on, and a state of PFedSD has places for those with which",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "why"), REFUSED)
def test_methods_that_count_on_who_was_there_refuse_by_name(words: dict[str, Any], why: str, tmp_path: Path) -> None:
    place = Place(tmp_path, words)
    for k in range(3):
        place.come(k)
    history = place.run(3, {2: place.coming(7, count=40)})
    assert why in place.refused(7)
    assert place.events() == []
    assert len(history.metrics) == 7
    assert place.audit("refused")[0]["device"] == f"site7 {7:032x}"


@pytest.mark.slow
def test_a_run_that_does_not_wait_stays_as_it_began(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.come(0), place.come(1)
    changes = place.changes(2)
    settings = replace(changes.job.settings, asynchrony="fedbuff:size=2")
    object.__setattr__(changes.job, "settings", settings)
    DeviceChanges(changes.job, place.out, changes._make, ["logistic"], place.said.append)
    place.come(7)
    place.fleet.admit_arrivals()
    assert place.refused(7).endswith(
        "no device comes later to this run or brings other examples while requests are under way (asynchrony = "
        "fedbuff:size=2): begin a new run with it"
    )
    assert not place.fleet.waiting


@pytest.mark.slow
def test_stored_predictions_are_of_as_many_examples(tmp_path: Path) -> None:
    place = Place(tmp_path, {"algorithm": "pfedsd", "pfedsd.teacher_store": "soft_predictions"})
    for k in range(3):
        place.come(k)
    place.run(3, {2: place.coming(1, count=40)})
    assert "(site1) brings 40 examples to train on, and a state of PFedSD has places for those with" in place.refused(1)
    assert place.events() == []


def test_what_the_server_cannot_go_on_with_is_told_to_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedloom.coordinator.job import Job
    from fedloom.core.errors import StorageError

    def fails(*_: object) -> None:
        raise StorageError("/secret/path is damaged")

    place = Place(tmp_path)
    place.come(0), place.come(1)
    monkeypatch.setattr(Job, "restore", fails)
    place.run(2, {2: place.coming(7)})
    assert place.refused(7).endswith("this run does not go on with this device: the audit log of its server says why")
    assert place.audit("refused")[0]["why"] == "/secret/path is damaged"


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"columns": ("a", "b", "c", "d")}, "and the run goes on with what it began with: columns must have the same"),
        ({"classes": ("x", "y", "z")}, "and the run goes on with what it began with: classes must have the same"),
        ({"shape": (5,)}, "and the run goes on with what it began with: examples must have the same shape"),
        ({"model": "lenet"}, "devices must have an architecture of the settings, logistic, got 'lenet' on 0"),
    ],
)
def test_who_comes_later_hears_what_differs(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.come(0), place.come(1)
    stranger = place.device(7)

    def says(message: bytes) -> bytes | None:
        answer = stranger(message)
        if b'"settings"' in message:
            answer = json.dumps(json.loads(answer) | change).encode()
        return answer

    place.run(2, {2: place.coming(7, member=says)})
    assert why in place.refused(7)
    assert place.events() == []


@pytest.mark.slow
def test_names_and_keys_of_who_comes_later(tmp_path: Path) -> None:
    """A name that is taken gets digits of the id; a key that is another device's in this run is refused."""
    place = Place(tmp_path)
    place.come(0), place.come(1)
    other = place.device(7)
    other.name = "site1"
    place.run(2, {2: place.coming(7, member=other)})
    devices = json.loads((place.out / "devices.json").read_text())
    assert devices["events"][0]["device"]["name"] == "site1-00000000"
    keyed = Place(tmp_path / "keyed")
    keyed.wires.keys = {"site0", "site1", "site7"}
    keyed.come(0), keyed.come(1)
    again = keyed.device(8)
    again.name = ""

    def comes() -> None:
        keyed.come(8, member=again)
        keyed.wires.names[keyed.ranks[8]] = "site1"
        keyed.wires.failures[keyed.ranks[1]] = "it has left"

    keyed.run(2, {2: comes})
    assert f"the key of 'site1' is that of device {1:032x} in this run, and this one is {8:032x}: " in keyed.refused(8)


@pytest.mark.slow
def test_a_run_does_not_change_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.deploy.server.device_changes.MOST", 1)
    place = Place(tmp_path)
    place.come(0), place.come(1)
    place.run(2, {1: place.coming(7), 4: place.coming(8)})
    assert place.events() == [(3, "came", 2)]
    assert place.refused(8).endswith("the devices of a run change at most 1 times: begin a new run")


@pytest.mark.slow
def test_who_waits_and_leaves_does_not_come(tmp_path: Path) -> None:
    place = Place(tmp_path, {"run.checkpoint_every": 50})
    place.come(0), place.come(1)

    def visit() -> None:
        place.come(7)
        place.fleet.admit_arrivals()
        assert [each.id for each in place.fleet.waiting.values()] == [f"{7:032x}"]
        place.wires.failures[place.ranks[7]] = "it has left"

    place.run(2, {2: visit, 3: place.coming(8)})
    assert place.events() == [(5, "came", 2)]
    assert [line["device"] for line in place.audit("waits")] == [f"{7:032x}", f"{8:032x}"]
    assert place.audit("left")[0]["device"] == f"{7:032x}"
