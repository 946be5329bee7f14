"""Names by which the keys of devices are registered: one declaration for every transport."""

from __future__ import annotations

import json
import re

from fedloom.core.errors import SettingError

SERVER = "server"  # the name by which the server itself connects over NATS, and no device
INVITED = "invitation-"  # before the name of a device, in the name by which its invitation connects
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,59}")  # a part of subjects of NATS, and of file names
_EARLIER = re.compile(r"[\w][\w.-]{0,63}")  # as fedloom 0.2.0 registered keys of Flower, which stay


def check_name(name: str, *, registered_for_flower: bool = False, remedy: str = "choose another") -> None:
    """Raise SettingError unless a device may be called so.

    `registered_for_flower`: whether the name stands in a list already, with a key of Flower: it may then have letters
    of other scripts and dots, as an earlier version took them.
    """
    form = _EARLIER if registered_for_flower else _NAME
    if not form.fullmatch(name) or name == SERVER or name.startswith(INVITED):
        raise SettingError(
            f"a device's name has 1 to 60 ASCII letters, digits, - and _, does not begin with - or {INVITED}, and is "
            f"not {SERVER}, by which the server itself connects, got {json.dumps(name)[:80]}: {remedy}"
        )
