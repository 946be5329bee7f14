"""Attacks by the names that people type."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedloom.core.errors import SettingError
from fedloom.core.grammar import Named, by_name, find
from fedloom.engines.attack_kinds import (
    Backdoor,
    Constant,
    FlippedLabels,
    InnerProduct,
    LittleIsEnough,
    Noise,
    Scale,
    StandStill,
)
from fedloom.engines.attacks import Attack

ATTACKS = by_name(
    (
        Named(("sign_flip",), partial(Scale, -1.0)),
        Named(("scale:X",), Scale, (float,)),
        Named(("stand_still",), StandStill),
        Named(("constant:X",), Constant, (float,)),
        Named(("inner_product:X",), InnerProduct, (float,)),
        Named(("noise:STD",), Noise, (float,)),
        Named(("labels",), FlippedLabels),
        Named(("alie", "alie:Z"), LittleIsEnough, (float,)),
        Named(("backdoor:CLASS", "backdoor:CLASS:BOOST"), Backdoor, (int, float)),
    )
)


def attack(text: str, attackers: str | None, seed: int) -> Attack | None:
    """Return the attack of that name by these clients; None for `none`.

    `attackers`: a share, as 0.25, or a list of clients, as 0,3,7. `seed`: by which a share is drawn, and noise.

    Raises:
        SettingError: there is no such attack, or a value is missing, malformed or out of range.
    """
    if text == "none":
        return None
    found = find("attack", text, ATTACKS, before="none")
    values = found.values("attack", text)
    made: Attack = found.made("attack", text, *values, **_who(attackers or ""), seed=seed)
    return made


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
