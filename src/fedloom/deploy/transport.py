"""Transports of messages between a server and its devices: what each offers, and which there are.

A transport is a room with a class that derives from `Transport`, and a line in `TRANSPORTS`. Commands, invitations and
the rest of `deploy` ask that class, and know no transport by name. Messages are bytes to it: `server` and `device` give
them their meaning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Protocol

from fedloom.core.errors import SettingError
from fedloom.ranks.communication import Connections

TRANSPORTS = {  # by the name that --transport has; the first is the default
    "gloo": "fedloom.deploy.rank_transports:OverGloo",
    "mpi": "fedloom.deploy.rank_transports:OverMPI",
    "flower": "fedloom.deploy.flower.flower_transport:OverFlower",
    "nats": "fedloom.deploy.nats.nats_transport:OverNats",
}
DEFAULT, DEFAULT_INVITED = "gloo", "flower"


class Participant(Protocol):
    """Answer the messages of a server until `is_over`; `leave_reason`: why this process leaves before, if it does."""

    is_over: bool
    leave_reason: str | None

    def __call__(self, data: bytes) -> bytes:
        """Return the answer to a message."""


class Member(Participant, Protocol):
    """Participant of a run, with its `name`."""

    name: str

    def changed(self) -> bool:
        """Return whether it has other examples, with which it joins again."""

    def waits_at(self, server: str) -> str:
        """Return what the device says while it waits for a server."""


@dataclass(frozen=True)
class Joining:
    """Content of an invitation that a device takes.

    `key`: that of the invitation, by which the device registers its own first; None once the invitation is used.
    `used`: notes that it is.
    """

    name: str
    transport: str
    server: str
    authority: Path
    key: Path | None
    used: Callable[[], None]

    @property
    def begins(self) -> str:
        """Sentence for the device before its key is registered."""
        return f"registering the key of {self.name} at {self.server}"

    def ends(self) -> str:
        """Note that the device's key is registered, and return the sentence for the device."""
        self.used()
        return f"the key of {self.name} is registered; the invitation is used, and can be deleted"


@dataclass(frozen=True, kw_only=True)
class ServerPlace:
    """Place of a server, as its options say it.

    `out`: the folder of the run. `certs`: that of certificates and registered keys. `wait`: seconds for devices to
    come; `least`: with how many the run begins. `say`: tells whoever started it; `refused`: notes who is not let in,
    and why.
    """

    out: Path
    say: Callable[[str], object]
    refused: Callable[[str, str], object] = lambda who, why: None
    certs: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8443
    insecure: bool = False
    wait: float = 600.0
    least: int | None = None
    resume: bool = False


@dataclass(frozen=True, kw_only=True)
class DevicePlace:
    """Way of a device to its server, as its options say it.

    `state`: its folder. `server`: HOST:PORT. `authority`: the certificate that it trusts; None: that in `state`.
    `joining`: how it was invited.
    """

    state: Path
    say: Callable[[str], object]
    server: str | None = None
    authority: Path | None = None
    insecure: bool = False
    insecure_anywhere: bool = False
    joining: Joining | None = None


class Transport(ABC):
    """The way between a server and its devices.

    `flags`: the options of `fedloom serve` and `join` that it takes, of those that not all transports do. `invites`:
    whether devices may be invited, by keys that `new_key` makes. `nkeys`: whether these are nkeys. `named_by_keys`:
    whether the name with which its key is registered is the only one that a device needs.
    """

    name: ClassVar[str]
    label: ClassVar[str]  # in messages
    flags: ClassVar[frozenset[str]] = frozenset()
    invites: ClassVar[bool] = False
    nkeys: ClassVar[bool] = False
    named_by_keys: ClassVar[bool] = False

    def check(self, place: ServerPlace | DevicePlace) -> None:
        """Refuse a place in which this end cannot be, before anything starts.

        Raises:
            SettingError: likewise.
        """
        if isinstance(place, ServerPlace) and place.least is None and not place.resume:
            raise SettingError(
                f"over {self.label} devices come when they like: say with how many the run begins (--least N)"
            )

    @abstractmethod
    def serve(self, place: ServerPlace) -> AbstractContextManager[Connections]:
        """Open the server's end while this is open, and say where devices find it."""

    @abstractmethod
    def join(self, place: DevicePlace, member: Callable[[], Member]) -> bool:
        """Take part until the run is over; return True if the device leaves before (SIGTERM).

        `member` makes the participant, anew for a server that begins anew.
        """

    def new_key(self, folder: Path) -> tuple[Path, str]:
        """Make a device's key in a folder, unless it is there, and return its file and its public part.

        Raises:
            SettingError: devices have no keys over this transport.
        """
        raise SettingError(
            f"over {self.label} devices have no keys, so none can be invited: choose another --transport "
            f"({' or '.join(name for name in TRANSPORTS if transport_named(name).invites)})"
        )


def transport_named(name: str) -> Transport:
    """Return the transport of a name in `TRANSPORTS`."""
    module, _, kind = TRANSPORTS[name].partition(":")
    made: Transport = getattr(import_module(module), kind)()
    return made
