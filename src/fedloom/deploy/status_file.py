"""The status file of a server, `status.json` in its run's folder: written while it runs, and readable after a crash."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any

from fedloom.core.errors import DamageError, FedloomError, SettingError, StorageError
from fedloom.deploy.presence import Presence
from fedloom.storage import files
from fedloom.storage.strict_json import parse

STATUS = "status.json"
EVERY, HEARTBEAT = 1.0, 5.0  # seconds between two writings, and between two where nothing happens
SILENT = 30.0  # seconds without a writing, after which a server is taken to hang
_LARGEST = 1 << 26  # bytes
_FORMAT = 1


class StatusFile:
    """Writer of the status file, in a thread while this is open.

    `tell`: called with what is wrong, once. `removed`: returns the ids of devices whose keys are registered no longer.
    `problem`: why the file could not be written the last time; "" if it was.
    """

    def __init__(self, folder: Path, presence: Presence, tell: Callable[[str], object]) -> None:
        self.folder, self.presence, self.problem = folder, presence, ""
        self.removed: Callable[[], Collection[str]] = tuple
        self._tell = tell
        self._end = Event()
        self._thread = Thread(target=self._run, name="status file", daemon=True)

    def __enter__(self) -> StatusFile:
        self.write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        said = str(error) if isinstance(error, FedloomError) else "" if kind is None else f"{kind.__name__}: {error}"
        self.presence.end("it was stopped by a signal" if kind is KeyboardInterrupt else said)
        self.write()

    def write(self) -> None:
        """Write the file; a disk that does not take it ends no run."""
        content = {"format": _FORMAT, "pid": os.getpid(), "host": socket.gethostname(), "written": time.time()}
        try:
            data = (
                json.dumps(content | self.presence.snapshot(), allow_nan=False) + "\n"
            )  # `document` takes ten times as long
            files.write(self.folder, STATUS, data.encode(), sync=False)
            self.problem = ""
        except StorageError as error:
            if not self.problem:
                self._tell(str(error))
            self.problem = str(error)

    def _run(self) -> None:
        seen, written = -1, 0.0
        while not self._end.wait(EVERY):
            self.presence.look(self.removed())
            if seen != self.presence.events or time.monotonic() - written >= HEARTBEAT:
                seen, written = self.presence.events, time.monotonic()
                self.write()


def read_status(folder: Path) -> dict[str, Any]:
    """Return the content of the status file of a run's folder, with how its server is in `server`.

    `server` is "runs", "has ended", "was killed" or "hangs".

    Raises:
        SettingError: there is none.
        StorageError: it is damaged.
    """
    path = folder / STATUS
    try:
        content = parse(files.load(path), _LARGEST)
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r:.20}, and this version reads {_FORMAT}")
        return content | {"server": _server(content)}
    except DamageError:
        raise SettingError(
            f"there is no {path}, which fedloom serve writes: name the folder of a run of devices, its --out"
        ) from None
    except (ValueError, LookupError, TypeError) as error:
        raise StorageError(f"{path} is damaged ({error}): a server that runs writes it anew") from None


def _server(content: dict[str, Any]) -> str:
    if content["ended"] is not None:
        return "has ended"
    if content["host"] == socket.gethostname() and not _runs(int(content["pid"])):
        return "was killed"
    return "runs" if time.time() - content["written"] < SILENT else "hangs"


def _runs(process: int) -> bool:
    """Return whether there is a process of this number; True where only its end could tell."""
    if os.name == "nt":  # where os.kill ends it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
