"""Who is asked, by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fedloom.coordinator.sampler import Arriving, Available, BySize, DeviceSampler, FixedList, SeededByRound, Uniform
from fedloom.core.errors import SettingError
from fedloom.core.naming import did_you_mean


def sampler(text: str, seed: int) -> DeviceSampler:
    """Make a sampler by name: `uniform`, `by_round`, `by_size`, `available:SHARE:PERIOD` or `list:0,1,2;3,4,5`.

    After each, `+arriving:FIRST:PER_ROUND` lets clients join late. `seed`: of the samplers that draw with one.

    Raises:
        SettingError: there is no such sampler, or a value is missing, malformed or out of range.
    """
    chosen, plus, late = text.partition("+")
    name, *given = chosen.split(":")
    if name not in _KINDS:
        forms = ", ".join(form for form, _, _ in _KINDS.values())
        raise SettingError(f"unknown sampler {text!r}{did_you_mean(name, _KINDS)}; there are {forms}")
    form, kinds, make = _KINDS[name]
    made = make(seed, *_values(given, kinds, text, form))
    if not plus:
        return made
    name, *given = late.split(":")
    if name != "arriving":
        raise SettingError(f"unknown sampler {text!r}{did_you_mean(name, ['arriving'])}; it may end in {_ARRIVING}")
    return Arriving(made, *_values(given, (int, int), text, form + _ARRIVING))


def _values(given: list[str], kinds: tuple[Callable[[str], Any], ...], text: str, form: str) -> list[Any]:
    if len(given) == len(kinds):
        with suppress(ValueError):
            return [kind(value) for kind, value in zip(kinds, given, strict=True)]
    raise SettingError(f"a sampler of this kind is written {form}, got {text!r}")


def _rounds(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(k) for k in clients.split(",") if clients) for clients in text.split(";"))


_ARRIVING = "+arriving:FIRST:PER_ROUND"
_KINDS: dict[str, tuple[str, tuple[Callable[[str], Any], ...], Callable[..., DeviceSampler]]] = {
    "uniform": ("uniform", (), Uniform),
    "by_round": ("by_round", (), lambda seed: SeededByRound()),
    "by_size": ("by_size", (), BySize),
    "available": (
        "available:SHARE:PERIOD", (float, int), lambda seed, share, period: Available(share, period, seed),
    ),
    "list": ("list:0,1,2;3,4,5", (_rounds,), lambda seed, rounds: FixedList(rounds)),
}  # fmt: skip
