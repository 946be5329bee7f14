"""System Monitor: readings of a device, and limits on them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from fedloom.core.choices import check_choices
from fedloom.core.errors import SettingError
from fedloom.wording import install


@dataclass(frozen=True)
class Reading:
    """Reading of a device; None where a value is unknown.

    `battery`: charge in [0, 1], None if plugged in. `load`: busy share of its processors in the last minute.
    `temperature`: of its hottest processor, in degrees Celsius. `memory`: free MiB.
    """

    battery: float | None = None
    load: float | None = None
    temperature: float | None = None
    memory: float | None = None


SystemMonitor = Callable[[], Reading]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits within which a device works: lowest battery and memory, highest load and temperature; None: no limit.

    Attributes:
        battery: charge in [0, 1], unless it is plugged in.
        load: busy share of its processors, 1 for all.
        temperature: degrees Celsius.
        memory: free MiB.
    """

    battery: float | None = None
    load: float | None = None
    temperature: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("battery", "load", "memory"):
            if (value := getattr(self, name)) is not None and not 0 <= value <= (1 if name == "battery" else 1e12):
                raise SettingError(f"{name} must be at least 0{' and at most 1' * (name == 'battery')}, got {value:g}")

    @property
    def is_set(self) -> bool:
        """Return whether any limit is set."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    def violation(self, reading: Reading) -> str | None:
        """Return a description of the first limit that a reading violates; None if it is within all."""
        for name, sign in (("battery", 1), ("load", -1), ("temperature", -1), ("memory", 1)):
            limit, value = getattr(self, name), getattr(reading, name)
            if limit is not None and value is not None and sign * value < sign * limit:
                return f"{name} is {value:g}, {'at least' if sign > 0 else 'at most'} {limit:g} is asked for"
        return None


def system_monitor() -> SystemMonitor:
    """Return a monitor of this machine, by psutil.

    Raises:
        SettingError: psutil is not installed.
    """
    try:
        import psutil
    except ImportError as error:
        raise SettingError(f"limits of a device need psutil ({error}): {install('device')}") from None

    def read() -> Reading:
        battery = getattr(psutil, "sensors_battery", lambda: None)()  # not on every system
        sensors: dict[str, Any] = getattr(psutil, "sensors_temperatures", dict)()
        degrees = [each.current for readings in sensors.values() for each in readings]
        return Reading(
            battery=None if battery is None or battery.power_plugged else battery.percent / 100,
            load=psutil.getloadavg()[0] / (os.cpu_count() or 1),
            temperature=max(degrees, default=None),
            memory=psutil.virtual_memory().available / (1 << 20),
        )

    return read
