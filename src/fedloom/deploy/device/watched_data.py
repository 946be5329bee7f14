"""Examples of a device that change on its disk while it takes part: `fedloom join --watch-data`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.deploy.device.data_manager import load_examples
from fedloom.storage.files import path_of

EVERY = 5.0  # seconds between two looks, for which files must have stayed as they are: somebody may be writing
_MOST = 1_000_000  # files of a folder that are looked at

Seen = dict[str, tuple[int, int]]


class WatchedData:
    """The files of a source of examples, and whether they have changed since a device joined with them.

    `say`: told why files that have changed cannot be read. `clock`: seconds.

    Raises:
        SettingError: the source is no file and no folder.
    """

    def __init__(self, source: str, say: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self.source, self._say, self._clock = source, say, clock
        self._place = _place_of(source)
        self._taken = self._last = self._look()
        self._next = clock() + EVERY

    def changed(self) -> bool:
        """Return whether there are other examples by now, which can be read; each change is told once."""
        if (now := self._clock()) < self._next:
            return False
        self._next, found = now + EVERY, self._look()
        has_settled, self._last = found == self._last, found
        if found == self._taken or not has_settled:
            return False
        self._taken = found
        try:
            load_examples(self.source)
        except Exception as error:  # whatever a file that is half written makes of its reader
            self._say(f"the examples have changed and cannot be read, so those before count: {error!s:.300}")
            return False
        return True

    def _look(self) -> Seen:
        """Return time and size of each file; nothing of files that are not there."""
        found: Seen = {}
        for path in _files_of(self._place):
            try:
                of = path.stat()
            except OSError:
                continue
            found[str(path)] = of.st_mtime_ns, of.st_size
        return found


def _place_of(source: str) -> Path:
    """Return the file or the folder of a source."""
    named = source.partition("?")[0]
    for said in (named, named.partition(":")[2]):
        if said and (place := path_of(said)).exists():
            return place
    raise SettingError(
        f"--watch-data looks at a file or at a folder, got --data {source}: name one, or start the device again when "
        "its examples change"
    )


def _files_of(place: Path) -> list[Path]:
    """Return the files of a folder and of those in it; the file itself where it is one."""
    if not place.is_dir():
        return [place]
    found = list[Path]()
    for folder, _, names in os.walk(place):
        found += [Path(folder, name) for name in names]
        if len(found) > _MOST:
            raise SettingError(
                f"--watch-data looks at no more than {_MOST:,} files, and {place} has more: leave it out"
            )
    return sorted(found)
