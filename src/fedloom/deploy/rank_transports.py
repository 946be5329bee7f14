"""Devices at ranks that were launched together over Gloo or MPI, on trusted networks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from fedloom.core.errors import SettingError
from fedloom.deploy.participation import take_part
from fedloom.deploy.transport import DevicePlace, Member, ServerPlace, Transport
from fedloom.ranks.communication import Connections, Transport as Launched
from fedloom.ranks.launched import communication, meeting_point, rank_here

TRUSTED = "for trusted networks only: nothing is encrypted, and anyone who can reach the server's port can join"


class OfRanks(Transport):
    """Rank 0 is the server, every other one a device."""

    name: ClassVar[Launched]

    def check(self, place: ServerPlace | DevicePlace) -> None:
        place.say(TRUSTED)
        rank = rank_here(self.name, of_devices=True)
        if isinstance(place, ServerPlace) and rank:
            raise SettingError("fedloom serve runs at rank 0, got another rank: run fedloom join there")
        if isinstance(place, DevicePlace) and not rank:
            raise SettingError("fedloom join runs at ranks 1, 2, ..., got rank 0: run fedloom serve there")

    @contextmanager
    def serve(self, place: ServerPlace) -> Iterator[Connections]:
        place.say(f"waiting for all devices at {meeting_point(self.name)}, {place.wait:g} s at most (--wait)")
        yield communication(self.name)

    def join(self, place: DevicePlace, member: Callable[[], Member]) -> bool:
        own = member()
        place.say(own.waits_at(meeting_point(self.name)))
        if take_part(communication(self.name), own):
            place.say("left")
            sys.stdout.flush()
            os._exit(0)  # a thread waits for the server and would keep the process alive
        return False


class OverGloo(OfRanks):
    """Ranks that torchrun has launched, or with the variables that it sets."""

    name, label = "gloo", "Gloo"


class OverMPI(OfRanks):
    """Ranks that mpirun has launched."""

    name, label = "mpi", "MPI"
