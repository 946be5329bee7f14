"""`fedloom sweep`."""

from __future__ import annotations

from typing import Any


def add_command(command: Any) -> None:
    """To be written."""
