"""Secure aggregation over devices: the bits of the simulation, who is lost at which message, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.core import tree
from fedloom.core.errors import RefusedError
from fedloom.core.types import Weighted
from fedloom.coordinator.part import Part
from fedloom.deploy.device.device_masks import DeviceMasks
from fedloom.deploy.registration import MASKED
from fedloom.engines.engine_options import Options
from fedloom.engines.links import Link
from fedloom.engines.loop import Loop
from fedloom.engines.message_bytes import head_of, unseal
from fedloom.privacy.secure_sums import InFixedPoint, MaskedMean, SecureAggregation
from fedloom.testing.in_process import DevicesInProcess, InProcess
from tiny import LOCAL, federation, mlp, population

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


@pytest.mark.parametrize("algorithm", [fl.FedAvg, fl.Scaffold, fl.PFedSD])
def test_devices_have_the_bits_of_the_simulation(algorithm: Any) -> None:
    made = algorithm(local=LOCAL)
    found, _, _, traffic = computed(made)
    want, _, _, simulated = computed(made, Loop)
    assert torch.equal(flat(found), flat(want))
    assert not any(each.failed for each in traffic)
    assert [t.up for t in traffic] == [t.up for t in simulated]
