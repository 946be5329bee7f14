"""Kept results: the runs of a table in one compact file, `TABLE/runs.jsonl.gz`, small enough to be committed.

The first line has the digest of the others; each of these is a run:

    {"place": "COLUMN/ROW", "seed": 0, "failed": null, "settings": {...}, "manifest": {...}, "rounds": [0, 1, 2],
     "series": {"global_accuracy": {"values": [0.1, 0.3, 0.4]}, "train_loss": {"at": [1, 2], "values": [2.3, 1.9]}}}

`at` counts the records that have a number, from 0, where not all of them have it. Numbers are those of metrics.jsonl.
Of lists of clients the last one alone is kept, of matrices of clients the last one and some before it, rounded; of
seconds nothing: they are not determined by the seed. Who holds what (`federation`) is kept where a study's sentences
need it.
"""

from __future__ import annotations

import functools
import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.coordinator import History, run_documents as reading
from fedloom.coordinator.history import Record
from fedloom.coordinator.record_entries import entries_of
from fedloom.core.errors import DamageError
from fedloom.storage import files
from fedloom.storage.strict_json import parse

NAME = "runs.jsonl.gz"
LAST = frozenset({"clients", "personal_by_client", "new_by_client", "new_others_by_client"})
"""Entries kept of the last record alone that has them."""
MATRICES = frozenset({"server_coefficients"})
"""Entries kept of the last record that has them, and to four decimals of at most `_EARLIER` before it."""
_EARLIER = 10
_LARGEST = 1 << 28  # bytes, unpacked
_DEFLATE = 1032  # at most so many bytes come from one that is compressed
_FORMAT = 1


@dataclass(frozen=True)
class Kept:
    """A run as it is kept.

    Attributes:
        place: COLUMN/ROW of its recipe.
        seed: its seed.
        history: settings, facts and records.
        failed: why it could not go on, None if it could.
    """

    place: str
    seed: int
    history: History
    failed: str | None


def thinned(metrics: Sequence[Record]) -> list[Record]:
    """Return records without lists of clients but the last, and with some of the matrices."""
    at = {n: [i for i, record in enumerate(metrics) if n in record] for n in LAST | MATRICES}
    last = {name: places[-1] for name, places in at.items() if places}
    earlier = {name: _spread(at[name][:-1], _EARLIER) for name in MATRICES}
    out = []
    for i, record in enumerate(metrics):
        kept = {name: value for name, value in record.items() if name not in at or i == last.get(name)}
        kept |= {name: [round(x, 4) for x in record[name]] for name in MATRICES if i in earlier[name]}
        out.append(kept)
    return out


def _spread(places: Sequence[int], most: int) -> set[int]:
    """Return at most so many places, the first and the last among them, evenly spaced."""
    if len(places) <= most:
        return set(places)
    return {places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)}


def write(folder: Path, runs: Iterable[Kept]) -> None:
    """Write the runs of a table into its folder; the same runs give the same bytes.

    Raises:
        StorageError: the file cannot be written.
    """
    ordered = sorted(runs, key=lambda run: (run.place, run.seed))
    lines = "".join(json.dumps(_packed(run), allow_nan=False, separators=(",", ":")) + "\n" for run in ordered).encode()
    head = json.dumps({"format": _FORMAT, "digest": files.digest(lines)}).encode() + b"\n"
    files.make(folder)
    files.write(folder, NAME, gzip.compress(head + lines, compresslevel=9, mtime=0))


def read(folder: Path) -> list[Kept]:
    """Return the runs that the folder of a table keeps, in the order of their places; none where it keeps none.

    Raises:
        DamageError: the file is not what was written.
    """
    path = folder / NAME
    if not path.is_file():
        return []
    about = path.stat()
    return list(_read(path, about.st_mtime_ns, about.st_size))


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> tuple[Kept, ...]:
    most = min(_LARGEST, size * _DEFLATE)  # a read takes memory for all that it is asked for, before it has any of it
    try:
        with gzip.open(path, "rb") as file:
            data = file.read(most + 1)
        if len(data) > _LARGEST:
            raise ValueError(f"it unpacks to more than {_LARGEST:,} bytes")
        first, _, rest = data.partition(b"\n")
        head = parse(first)
        if head.get("format") != _FORMAT or head.get("digest") != files.digest(rest):
            raise ValueError("its first line is not that of the others")
        return tuple(_unpacked(parse(line, len(line))) for line in rest.splitlines())
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamageError(f"{path} is damaged: {error}; bring back the file that was committed") from None


def _packed(run: Kept) -> dict[str, Any]:
    metrics = thinned(run.history.metrics)
    names = dict.fromkeys(name for record in metrics for name in record if name != "round")
    series: dict[str, Any] = {}
    for name in names:
        at = [i for i, record in enumerate(metrics) if name in record]
        series[name] = {"at": at} if len(at) < len(metrics) else {}
        series[name]["values"] = [metrics[i][name] for i in at]
    manifest = {k: v for k, v in run.history.manifest.items() if k not in ("format", "documents")}
    return {
        "place": run.place,
        "seed": run.seed,
        "failed": run.failed,
        "settings": run.history.settings,
        "manifest": manifest,
        **({"federation": run.history.federation} if run.history.federation else {}),
        "rounds": [record["round"] for record in metrics],
        "series": series,
    }


def _unpacked(packed: Mapping[str, Any]) -> Kept:
    metrics: list[Record] = [{"round": round} for round in packed["rounds"]]
    for name, series in packed["series"].items():
        values = series["values"]
        for i, value in zip(series.get("at", range(len(metrics))), values, strict=True):
            metrics[i][name] = value
    settings, manifest = dict(packed["settings"]), dict(packed["manifest"])
    check = reading.checker("metrics.jsonl", entries_of(manifest))
    for record in metrics:
        check(record)
    algorithm = str(manifest.get("algorithm") or settings.get("algorithm") or "")
    history = History(
        algorithm=algorithm, engine=str(manifest.get("engine") or ""), metrics=metrics, settings=settings,
        manifest=manifest, federation=dict(packed.get("federation", {})),
    )  # fmt: skip
    failed = packed["failed"]
    return Kept(str(packed["place"]), int(packed["seed"]), history, None if failed is None else str(failed))
