"""Attacks by the names that people type."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedloom.core.errors import SettingError
from fedloom.engines.attacks import (
    Attack,
    Backdoor,
    Constant,
    FlippedLabels,
    InnerProduct,
    LittleIsEnough,
    Noise,
    Scale,
    StandStill,
)
from fedloom.wording import did_you_mean

ATTACKS: dict[str, tuple[tuple[str, ...], Any, tuple[type, ...]]] = {
    "sign_flip": (("sign_flip",), partial(Scale, -1.0), ()),
    "scale": (("scale:X",), Scale, (float,)),
    "stand_still": (("stand_still",), StandStill, ()),
    "constant": (("constant:X",), Constant, (float,)),
    "inner_product": (("inner_product:X",), InnerProduct, (float,)),
    "noise": (("noise:STD",), Noise, (float,)),
    "labels": (("labels",), FlippedLabels, ()),
    "alie": (("alie", "alie:Z"), LittleIsEnough, (float,)),
    "backdoor": (("backdoor:CLASS", "backdoor:CLASS:BOOST"), Backdoor, (int, float)),
}
"""By name: what may be written, what makes the attack, the types of the values behind the name."""


def attack(text: str, attackers: str | None, seed: int) -> Attack | None:
    """Return the attack of that name by these clients; None for `none`.

    `attackers`: a share, as 0.25, or a list of clients, as 0,3,7. `seed`: by which a share is drawn, and noise.

    Raises:
        SettingError: there is no such attack, or a value is missing, malformed or out of range.
    """
    name, *given = text.split(":")
    if name == "none" and not given:
        return None
    if name not in ATTACKS:
        forms = ", ".join(["none", *(form for each, *_ in ATTACKS.values() for form in each)])
        raise SettingError(
            f"unknown clients.attack = {text!r}{did_you_mean(name, ['none', *ATTACKS])}; there are {forms}"
        )
    forms_of_name, make, types = ATTACKS[name]
    try:
        if len(given) not in {form.count(":") for form in forms_of_name}:
            raise ValueError
        values = [read(value) for read, value in zip(types, given, strict=False)]
    except ValueError:
        raise SettingError(f"this attack is written {' or '.join(forms_of_name)}, got {text!r}") from None
    attack: Attack = make(*values, **_who(attackers or ""), seed=seed)
    return attack


def _who(text: str) -> dict[str, Any]:
    """Return the share or the list of clients that a text names."""
    parts = text.split(",")
    if all(part.isdecimal() for part in parts):
        return {"clients": tuple(int(part) for part in parts)}
    try:
        return {"share": float(text)}
    except ValueError:
        raise SettingError(
            f"clients.attackers is a share of the clients with a point, 0.25, or a list, 0,3,7, got {text!r}"
        ) from None
