"""The list of devices as it is now, for a server that goes on whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.deploy.certificates import DEVICES, keys, today


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
    is wrong, once. They are read where the file is another one than the last time: servers ask again and again, and to
    read 2,000 keys takes 80 ms.
    """

    def __init__(self, folder: Path, tell: Callable[[str], object], *, nkeys: bool = False) -> None:
        self.folder, self._tell, self.nkeys = folder, Once(tell), nkeys
        self._stamp: object = self._look()
        self._last = keys(folder, nkeys=nkeys)

    def __call__(self) -> dict[str, str]:
        """Return the keys."""
        if (now := self._look()) == self._stamp:
            self._tell("")
            return self._last
        try:
            self._last, self._stamp = keys(self.folder, nkeys=self.nkeys), now
            self._tell("")
        except (SettingError, OSError) as error:
            self._tell(f"{error}; until then nobody is let in or shut out")
        return self._last

    def _look(self) -> object:
        """Return what is another one once there may be other keys: of the file, and the day, on which some end."""
        try:
            its = (self.folder / DEVICES).stat()
        except OSError:
            return today()
        return today(), its.st_ino, its.st_size, its.st_mtime_ns
