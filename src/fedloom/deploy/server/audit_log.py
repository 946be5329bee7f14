"""The audit log of a server: each event of each device, with its time and the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LARGEST_AUDIT = 1 << 28  # bytes, about a million lines
NAMELESS = "nameless"  # who connects and says neither name nor id
_LONGEST = 300  # characters of a device's words


class Audit:
    """Audit log, a line of JSON for each event of a device: joined, answered, declined, refused, lost, and the reason.

    A run never reads it, since it holds times and words of devices. Beyond `LARGEST_AUDIT` bytes it is begun anew; the
    part before is kept as `.old`. `names`: of devices that have one, by id. `hear`: called with each event, whether
    or not it is written.
    """

    def __init__(self, path: Path | None = None, hear: Callable[[Mapping[str, Any]], object] = lambda event: None):
        self.path, self.hear = path, hear
        self.names: Mapping[str, str] = {}

    def __call__(self, event: str, device: str, reason: str | None = None, **fields: object) -> None:
        """Write a line."""
        line = self.tell(event, device, reason, **fields)
        if self.path is None:
            return
        with self.path.open("a", encoding="ascii") as file:
            file.write(json.dumps(line) + "\n")
            is_full = file.tell() > LARGEST_AUDIT
        if is_full:
            self.path.replace(self.path.with_name(f"{self.path.name}.old"))

    def tell(self, event: str, device: str, reason: str | None = None, **fields: object) -> dict[str, Any]:
        """Tell who hears of an event that has no line, such as the bytes of a message, and return the event."""
        line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
        line |= {"device": device[:80]} | ({"name": name} if (name := self.names.get(device)) else {})
        line |= {"why": reason[:_LONGEST]} if reason is not None else {}
        line |= {name: value for name, value in fields.items() if value != ""}
        self.hear(line)
        return line
