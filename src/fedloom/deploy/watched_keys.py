"""The list of devices as it is now, for a server that goes on whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.deploy.certificates import keys


class Once:
    """Teller of texts that leaves out the last one that it told; "" is nothing, after which the same is told again."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell, self._last = tell, ""

    def __call__(self, text: str) -> None:
        """Take a text."""
        if text and text != self._last:
            self._tell(text)
        self._last = text


class WatchedKeys:
    """The public keys that may connect, by name, as the file has them when this is called.

    A server goes on where somebody has spoilt the file: then they are those of the last time. `tell`: called with what
    is wrong, once.
    """

    def __init__(self, folder: Path, tell: Callable[[str], object], *, nkeys: bool = False) -> None:
        self.folder, self._tell, self.nkeys = folder, Once(tell), nkeys
        self._last = keys(folder, nkeys=nkeys)

    def __call__(self) -> dict[str, str]:
        """Return the keys."""
        try:
            self._last = keys(self.folder, nkeys=self.nkeys)
            self._tell("")
        except (SettingError, OSError) as error:
            self._tell(f"{error}; until then nobody is let in or shut out")
        return self._last
