"""Samplers by the names that people type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedloom.coordinator.sampler import Arriving, Available, BySize, DeviceSampler, FixedList, SeededByRound, Uniform
from fedloom.core.errors import SettingError
from fedloom.wording import did_you_mean


@dataclass(frozen=True)
class NamedSampler:
    """Describe a sampler that has a name."""

    form: str
    """Its name and what stands behind it, `NAME:VALUE`."""
    make: Callable[..., DeviceSampler]
    """Its class, of which the first paragraph of the docstring says whom it asks."""
    reads: tuple[Callable[[str], Any], ...] = ()
    """Read the values behind the name, which are the first fields of the class."""

    def values(self, given: list[str], text: str, form: str) -> list[Any]:
        """Return the values that are written behind the name.

        Raises:
            SettingError: there are more, fewer or others than `form` says.
        """
        if len(given) == len(self.reads):
            with suppress(ValueError):
                return [read(value) for read, value in zip(self.reads, given, strict=True)]
        raise SettingError(f"a sampler of this kind is written {form}, got {text!r}")


def _rounds(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(k) for k in clients.split(",") if clients) for clients in text.split(";"))


SAMPLERS: dict[str, NamedSampler] = {
    sampler.form.partition(":")[0]: sampler
    for sampler in (
        NamedSampler("uniform", Uniform),
        NamedSampler("by_round", SeededByRound),
        NamedSampler("by_size", BySize),
        NamedSampler("available:SHARE:PERIOD", Available, (float, int)),
        NamedSampler("list:0,1,2;3,4,5", FixedList, (_rounds,)),
    )
}
ARRIVING = NamedSampler("+arriving:FIRST:PER_ROUND", Arriving, (int, int))
"""It may follow each of the others."""


def sampler(text: str, seed: int) -> DeviceSampler:
    """Make a sampler by its name in `SAMPLERS`, which `ARRIVING` may follow.

    `seed`: of the samplers that draw with one.

    Raises:
        SettingError: there is no such sampler, or a value is missing, malformed or out of range.
    """
    chosen, plus, late = text.partition("+")
    name, *given = chosen.split(":")
    if name not in SAMPLERS:
        forms = ", ".join(one.form for one in SAMPLERS.values())
        raise SettingError(f"unknown sampler {text!r}{did_you_mean(name, SAMPLERS)}; there are {forms}")
    found = SAMPLERS[name]
    seeded = {"seed": seed} if "seed" in inspect.signature(found.make).parameters else {}
    made = found.make(*found.values(given, text, found.form), **seeded)
    if not plus:
        return made
    name, *given = late.split(":")
    if name != "arriving":
        raise SettingError(f"unknown sampler {text!r}{did_you_mean(name, ['arriving'])}; it may end in {ARRIVING.form}")
    return ARRIVING.make(made, *ARRIVING.values(given, text, found.form + ARRIVING.form))
