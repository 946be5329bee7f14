"""Events of the devices of a run: which have come after it began, were removed, are back, or have other examples.

They stand in the run's devices.json, whose digest its manifest has: whoever reads the run knows who was there when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.core.json_types import whole
from fedloom.deploy.registration import Registration

CAME, REMOVED, BACK, RENEWED_DATA = "came", "removed", "back", "renewed"
RENEWED = ("train", "test", "val", "statistics_digest")  # entries of a registration that may change in a run
_WITH_DEVICE = (CAME, RENEWED_DATA)
_KINDS = (*_WITH_DEVICE, REMOVED, BACK)
_COUNT = whole(0, (1 << 40) - 1, "a whole number below 2**40")


@dataclass(frozen=True)
class Event:
    """A change of the devices of a run between two rounds.

    Attributes:
        round: the first that it holds for, from 1.
        kind: a device `came`, its key was `removed`, it is `back`, or its examples were `renewed`.
        client: number of the device; one that came has the next.
        device: its registration from then on; None where that stays.
    """

    round: int
    kind: str
    client: int
    device: Registration | None = None

    def described(self) -> dict[str, Any]:
        """Return the event as JSON has it."""
        out: dict[str, Any] = {"round": self.round, "event": self.kind, "client": self.client}
        return out if self.device is None else {**out, "device": self.device.described()}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Event:
        """Return the event that `described` has described.

        Raises:
            ValueError: there is no such event.
            RefusedError: there is no such registration.
        """
        round, kind, client = (fields[name] for name in ("round", "event", "client"))
        if kind not in _KINDS or not (_COUNT.fits(round) and _COUNT.fits(client)):
            raise ValueError(f"no event of devices is {dict(fields)!r:.200}")
        return cls(round, kind, client, Registration.of(fields["device"]) if kind in _WITH_DEVICE else None)

    def told(self, label: str) -> str:
        """Return the event in words. `label`: of its device."""
        what = {
            CAME: "comes as client {client}",
            REMOVED: "was removed, and is drawn no more",
            BACK: "has a registered key again",
            RENEWED_DATA: "brings other examples, {count:,} to train on",
        }[self.kind]
        count = 0 if self.device is None else sum(self.device.train)
        return f"from round {self.round} on: device {label} {what.format(client=self.client, count=count)}"


def after(devices: Sequence[Registration], event: Event) -> tuple[Registration, ...]:
    """Return the devices after an event.

    Raises:
        ValueError: there is no such device, or it takes the place of another one.
    """
    known = len(devices)
    if event.client >= known + (event.kind == CAME) or (event.kind == CAME and event.client < known):
        raise ValueError(f"client {event.client} cannot be {event.kind} among {known} devices")
    if event.device is None:
        return tuple(devices)
    ids = [device.id for device in devices]
    if (event.device.id in ids) if event.kind == CAME else (event.device.id != ids[event.client]):
        raise ValueError(f"client {event.client} cannot be device {event.device.id}")
    return (*devices[: event.client], event.device, *devices[event.client + 1 :])


def away(registry: Mapping[str, Any], round: int | None = None) -> set[int]:
    """Return the clients that may not be asked: those that have not come yet, and those that were removed.

    Args:
        registry: the content of devices.json.
        round: from 0; None: after all events.
    """
    out = set[int]()
    for event in sorted(registry.get("events", ()), key=lambda event: int(event["round"])):
        has_happened = round is None or int(event["round"]) <= round + 1
        if event["event"] == (REMOVED if has_happened else CAME):
            out.add(event["client"])
        elif event["event"] == BACK and has_happened:
            out.discard(event["client"])
    return out
