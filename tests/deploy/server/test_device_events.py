"""Events of the registry: what they say, what is none, and who is away in which round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import StorageError
from fedloom.deploy.registration import Registration
from fedloom.deploy.server.device_events import BACK, CAME, REMOVED, RENEWED_DATA, Event, away
from fedloom.deploy.server.device_registry import Registry
from fedloom.storage.strict_json import document

ONE = Registration("0" * 32, (3, 2), (1, 0), (0, 0), (4,), "float32", "net", name="Kiel")
OTHER, THIRD = (replace(ONE, id=f"{k:032x}", name=name) for k, name in ((1, "Bremen"), (2, "Ulm")))
EVENTS = (
    Event(3, CAME, 2, THIRD),
    Event(5, REMOVED, 0),
    Event(7, RENEWED_DATA, 1, replace(OTHER, train=(9, 9))),
    Event(8, BACK, 0),
)


def changed(*events: Event) -> Registry:
    registry = Registry("f" * 32, (ONE, OTHER))
    for event in events:
        registry = registry.with_event(event)
    return registry


def test_a_registry_with_events_is_read_as_it_was_written(tmp_path: Path) -> None:
    registry = changed(*EVENTS)
    assert [each.name for each in registry.devices] == ["Kiel", "Bremen", "Ulm"]
    assert registry.devices[1].train == (9, 9)
    registry.save(tmp_path / "devices.json")
    assert Registry.read(tmp_path / "devices.json") == registry
    assert registry.begun == Registry("f" * 32, (ONE, OTHER))
    assert [each["name"] for each in registry.described()["devices"]] == ["Kiel", "Bremen"]
    f = registry.federation()
    assert f.partition.sizes.tolist() == [5, 18, 5]


def test_who_is_away_in_which_round() -> None:
    registry = changed(*EVENTS).described()
    found = {round + 1: away(registry, round) for round in range(9)}
    assert found == {1: {2}, 2: {2}, 3: set(), 4: set(), 5: {0}, 6: {0}, 7: {0}, 8: set(), 9: set()}
    assert away(registry) == set()
    assert away(changed(*EVENTS[:2]).described()) == {0}
    assert away({}, 3) == set()
    late = changed(Event(9, REMOVED, 1), Event(6, BACK, 0), Event(4, REMOVED, 0))  # of a run that went back
    assert [away(late.described(), round) for round in (4, 5, 8)] == [{0}, set(), {1}]


def test_events_in_words() -> None:
    told = [event.told("Kiel") for event in EVENTS]
    assert told == [
        "from round 3 on: device Kiel comes as client 2",
        "from round 5 on: device Kiel was removed, and is drawn no more",
        "from round 7 on: device Kiel brings other examples, 18 to train on",
        "from round 8 on: device Kiel has a registered key again",
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"event": "left"}, "no event of devices is"),
        ({"round": -1}, "no event of devices is"),
        ({"client": "2"}, "no event of devices is"),
        ({"client": 3}, "client 3 cannot be came among 2 devices"),
        ({"client": 1}, "client 1 cannot be came among 2 devices"),
        ({"event": "renewed", "client": 2}, "client 2 cannot be renewed among 2 devices"),
        ({"event": "renewed", "client": 1}, f"client 1 cannot be device {2:032x}"),
        ({"device": OTHER.described()}, f"client 2 cannot be device {1:032x}"),
        ({"device": {}}, "a device registers with an id"),
    ],
)
def test_what_is_no_event_is_damage(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    content = changed().described() | {"events": [EVENTS[0].described() | change]}
    (tmp_path / "devices.json").write_bytes(document(content))
    with pytest.raises(StorageError, match=why):
        Registry.read(tmp_path / "devices.json")
