"""Compare the logs and documents of a run with the digests that its newest checkpoint and its manifest have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.coordinator.checkpoint import LOGS, PER_CLIENT, Checkpoint, Checkpoints, Prefix, identity
from fedloom.core.errors import DamageError
from fedloom.storage import files

_SHOWN = ("settings.json", "federation.json", *LOGS, PER_CLIENT)
ALONE = {"devices.json"}  # documents that nothing else tells
BRING_BACK = "the checkpoints are untouched: bring the log back, or export the model"


def unproved(folder: Path, manifest: Mapping[str, Any], last: int) -> str:
    """Return in words what nothing proves of a run's logs, "" where all is proved. No state is read.

    `last`: the last round in the logs.

    Raises:
        DamageError: a document or a log is not what the run wrote; names it.
        StorageError: a file cannot be read.
    """
    named = manifest["documents"]
    for name in _SHOWN:
        if name in named and files.exists(folder / name):
            check_named(folder / name, named[name])
    checkpoints = Checkpoints(folder / "checkpoints")
    checkpoints.identity = identity(manifest)
    newest = _newest(checkpoints)
    if newest is None:
        return "" if last < 1 else "no checkpoint proves its logs"
    for name, prefix in newest.logs.items():
        if files.exists(folder / name):  # what is missing shows nothing
            check_start(folder / name, files.load(folder / name), prefix, newest.round)
    return "" if last <= newest.round else f"no checkpoint proves its rounds after {newest.round} yet"


def _newest(checkpoints: Checkpoints) -> Checkpoint | None:
    """Return the newest checkpoint of a run, None if there is none.

    The run may go on meanwhile: an index that is listed may be gone when it is read.
    """
    while rounds := checkpoints.rounds():
        try:
            return checkpoints.read(rounds[-1])
        except DamageError:
            if files.exists(checkpoints.index(rounds[-1])):
                raise
    return None


def check_named(path: Path, digests: list[str]) -> None:
    """Raise DamageError if the digest of a file is not among those that the manifest has for it."""
    if files.digest_of(path) not in digests:
        remedy = ", or move it away: going on with what began the run (its command with --resume) writes it anew"
        raise DamageError(
            f"{path} is not what manifest.json has the digest of: it was damaged or changed. Bring it "
            f"back{'' if path.name in ALONE else remedy}"
        )


def check_start(path: Path, data: bytes, prefix: Prefix, round: int) -> None:
    """Raise DamageError if a log does not begin as it did when the checkpoint of a round was made."""
    size, digest = prefix
    if digest != files.digest(data[:size]):
        raise DamageError(
            f"{path} was changed: its first {size:,} bytes are not those of which the checkpoint of round {round} has "
            f"the digest; {BRING_BACK}"
        )
