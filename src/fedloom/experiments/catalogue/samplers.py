"""Samplers by the names that people type."""

from __future__ import annotations

import inspect

from fedloom.coordinator.sampler import Arriving, Available, BySize, DeviceSampler, FixedList, SeededByRound, Uniform
from fedloom.core.grammar import Named, by_name, find


def _rounds(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(k) for k in clients.split(",") if clients) for clients in text.split(";"))


SAMPLERS = by_name(
    (
        Named(("uniform",), Uniform),
        Named(("by_round",), SeededByRound),
        Named(("by_size",), BySize),
        Named(("available:SHARE:PERIOD",), Available, (float, int)),
        Named(("list:0,1,2;3,4,5",), FixedList, (_rounds,)),
    )
)
ARRIVING = Named(("+arriving:FIRST:PER_ROUND",), Arriving, (int, int))
"""It may follow each of the others."""


def sampler(text: str, seed: int) -> DeviceSampler:
    """Make a sampler by its name in `SAMPLERS`, which `ARRIVING` may follow.

    `seed`: of the samplers that draw with one.

    Raises:
        SettingError: there is no such sampler, or a value is missing, malformed or out of range.
    """
    chosen, plus, late = text.partition("+")
    found = find("sampler", chosen, SAMPLERS)
    seeded = {"seed": seed} if "seed" in inspect.signature(found.make).parameters else {}
    made: DeviceSampler = found.made("sampler", text, *found.values("sampler", chosen, text), **seeded)
    if not plus:
        return made
    late = plus + late
    end = find("end of a sampler", late, by_name([ARRIVING]))
    arriving: DeviceSampler = end.made("sampler", text, made, *end.values("sampler", late, text))
    return arriving
