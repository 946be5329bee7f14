"""Records of a mirror: `files/DIGEST`, and `records/NUMBER.json`, of which the newest whole one names them all.

A file is named by the digest of its bytes, so that none that a record names is ever written again. A record is written
once all that it names is there, and sealed with its own digest: half of one is none, and the one before still counts.
What only older records name is deleted once the new one is there. So a writer may die at any moment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from annotated_types import Ge

from fedloom.coordinator import run_documents as reading
from fedloom.core.errors import DamageError
from fedloom.core.json_types import COUNT, Index, JsonType, mapped, matching
from fedloom.mirror.object_store import ObjectStore
from fedloom.storage.strict_json import MOST

FORMAT = 1
RECORDS, FILES = "records", "files"
DIGEST = "[0-9a-f]{32}"
_NAME = re.compile(r"([0-9]{8,})\.json")
_KINDS = {
    "run": JsonType(matching(DIGEST), "a digest"),
    **dict.fromkeys(("number", "round"), COUNT),
    "documents": JsonType(mapped(matching(DIGEST)), "a mapping of names to digests"),
    "logs": JsonType(
        mapped(mapped(Annotated[Index, Ge(1)], matching(DIGEST))), "a mapping of names to the bytes of each piece"
    ),
    "checkpoints": JsonType(mapped(matching(DIGEST), matching("[1-9][0-9]*|0")), "a mapping of rounds to digests"),
}


@dataclass(frozen=True)
class MirrorRecord:
    """A run in a mirror.

    Attributes:
        number: of the record, higher than those before.
        run: the run's fingerprint.
        round: of its newest checkpoint.
        documents: digests of the manifest, and of what it names, by file.
        logs: bytes of the pieces of each log, in their order, by digest.
        checkpoints: digests of the indexes of checkpoints by round; they name states.
    """

    number: int
    run: str
    round: int
    documents: Mapping[str, str]
    logs: Mapping[str, Mapping[str, int]]
    checkpoints: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its place in the mirror."""
        return f"{RECORDS}/{self.number:08d}.json"

    def sealed(self) -> bytes:
        """Return the record as it is written."""
        return reading.sealed({"format": FORMAT, **asdict(self)})

    @classmethod
    def of(cls, data: bytes) -> MirrorRecord:
        """Return the record that was written.

        Raises:
            ValueError: it is not what a mirror writes.
        """
        raw = reading.unsealed(data)
        if raw.pop("format", None) != FORMAT:
            raise ValueError(f"format must be {FORMAT}")
        for name, kind in _KINDS.items():
            if not kind.fits(raw.get(name)):
                raise ValueError(f"{name} must be {kind.words}")
        if set(raw) != set(_KINDS) or str(raw["round"]) not in raw["checkpoints"]:
            raise ValueError("it has other entries than a record, or none of its newest checkpoint")
        return cls(**raw)


def newest_record(store: ObjectStore) -> tuple[MirrorRecord | None, int]:
    """Return the newest whole record of a mirror, None if there is none, and the highest number of any.

    Raises:
        StorageError: the store does not answer.
    """
    numbers = sorted(int(match[1]) for match in map(_NAME.fullmatch, store.sizes(RECORDS)) if match)
    for number in reversed(numbers):
        try:
            record = MirrorRecord.of(store.read(f"{RECORDS}/{number:08d}.json", MOST))
        except (DamageError, ValueError):  # half written, or deleted meanwhile
            continue
        if record.number == number:
            return record, numbers[-1]
    return None, max(numbers, default=0)


def older_records(store: ObjectStore, number: int) -> list[str]:
    """Return the places of records before one."""
    found = [name for name in store.sizes(RECORDS) if (match := _NAME.fullmatch(name)) and int(match[1]) < number]
    return [f"{RECORDS}/{name}" for name in found]


def place_of(digest: Any) -> str:
    """Return where the file with a digest stands in a mirror."""
    return f"{FILES}/{digest}"
