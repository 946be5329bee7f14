"""The files of a run, read with distrust: an error names the file, the line and what is wrong with it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedloom.core.errors import SettingError

Object = dict[str, Any]

_MOST = 1 << 26  # bytes of a line or of a JSON file
_ACCURACIES = (
    "global_accuracy",
    "in_local_accuracy",
    "out_local_accuracy",
    "personal_accuracy",
    "personal_worst_tenth",
    "val_accuracy",
)
_NUMBERS = ("train_loss", "global_loss", "forgetting", "personal_std")


def metrics(folder: Path) -> list[Object]:
    """The records of metrics.jsonl, rounds in order."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise SettingError(
            f"{folder} holds no run: metrics.jsonl is missing; name a directory that a run was written to"
        )
    classes: set[int] = set()

    def check(record: Object) -> None:
        for name in _ACCURACIES:
            _need(_share(record.get(name)), name, "a number in 0..1 or null", record.get(name))
        for name in _NUMBERS:
            value = record.get(name)
            _need(value is None or _number(value), name, "a number or null", value)
        for name in ("bytes_down", "bytes_up"):
            _need(_count(record.get(name, 0)), name, "an integer >= 0", record.get(name))
        clients = record.get("clients", [])
        _need(_list(clients) and all(map(_count, clients)), "clients", "a list of client numbers", clients)
        failed = record.get("failed", {})
        ok = isinstance(failed, dict) and all(isinstance(v, str) for v in failed.values())
        _need(ok, "failed", "a mapping of clients to reasons", failed)
        refused = record.get("server_refused", "")
        _need(isinstance(refused, str), "server_refused", "a reason", refused)
        by_client = record.get("personal_by_client", {})
        ok = isinstance(by_client, dict) and all(v is not None and _share(v) for v in by_client.values())
        _need(ok, "personal_by_client", "a mapping of clients to numbers in 0..1", by_client)
        by_class = record.get("class_accuracy")
        if by_class is not None:
            ok = _list(by_class) and all(map(_share, by_class))
            _need(ok, "class_accuracy", "a list of numbers in 0..1 or null", by_class)
            classes.add(len(by_class))
            _need(len(classes) == 1, "class_accuracy", "as long as in the rounds before", by_class)

    return list(_records(path, check))


def timing(folder: Path) -> list[Object]:
    """The records of timing.jsonl; none where there is no such file."""

    def check(record: Object) -> None:
        seconds = record.setdefault("seconds", {})
        ok = isinstance(seconds, dict) and all(_number(s) and s >= 0 for s in seconds.values())
        _need(ok, "seconds", "a mapping of phases to numbers >= 0", seconds)
        peak = record.get("peak_rss_mib")
        _need(peak is None or _number(peak), "peak_rss_mib", "a number or null", peak)

    path = folder / "timing.jsonl"
    return list(_records(path, check)) if path.is_file() else []


def mapping(path: Path) -> Object:
    """A JSON file with an object in it; empty where there is no such file."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        data = file.read(_MOST + 1)
    try:
        return _parsed(data)
    except ValueError as error:
        raise SettingError(f"{path}: {error}; restore the file or remove it") from None


def federation(path: Path) -> Object:
    """federation.json: who holds how many examples of which class; empty where there is no such file."""
    found = mapping(path)
    if not found:
        return {}
    try:
        for name in ("clients", "classes"):
            _need(_count(found.get(name)) and found[name] > 0, name, "an integer >= 1", found.get(name))
        shown: Any = found.get("shown")
        ok = _list(shown) and all(map(_count, shown)) and len(shown) <= found["clients"]
        _need(ok, "shown", "a list of client numbers", shown)
        for name in ("train", "test"):
            table: Any = found.get(name)
            if name == "test" and table is None:
                continue
            ok = _list(table) and len(table) == len(shown)
            ok = ok and all(_list(row) and len(row) == found["classes"] and all(map(_count, row)) for row in table)
            _need(ok, name, f"{len(shown)} lists of {found['classes']} integers >= 0", table)
        sizes = found.get("sizes", {})
        _need(isinstance(sizes, dict) and all(map(_number, sizes.values())), "sizes", "a mapping to numbers", sizes)
    except ValueError as error:
        raise SettingError(f"{path}: {error}; restore the file or remove it") from None
    return found


def natural(text: str) -> list[tuple[int, int, str]]:
    """A key by which names sort as people count: seed-2 before seed-10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return [(0, int(p), p) if p[0] in "0123456789" else (1, 0, p) for p in parts]


def _records(path: Path, check: Callable[[Object], None]) -> Iterator[Object]:
    previous = -1
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_MOST + 1):
            number += 1
            try:
                record = _parsed(line)
            except ValueError as error:
                if len(line) <= _MOST and not line.endswith(b"\n"):
                    return  # cut off when the run was killed
                raise SettingError(f"{path}, line {number}: {error}; cut the file before this line") from None
            try:
                _need(_count(record.get("round")), "round", "an integer >= 0", record.get("round"))
                _need(record["round"] > previous, "round", f"larger than {previous}, the one before", record["round"])
                check(record)
            except ValueError as error:
                raise SettingError(f"{path}, line {number}: {error}; cut the file before this line") from None
            previous = record["round"]
            yield record


def _parsed(data: bytes) -> Object:
    """JSON of at most `_MOST` bytes with finite numbers only."""
    if len(data) > _MOST:
        raise ValueError(f"at most {_MOST:,} bytes of JSON are read, got more")
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse, parse_float=_finite, parse_int=_integer)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("text must be UTF-8") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, got {_short(value)}")
    return value


def _refuse(text: str) -> float:
    raise ValueError(f"numbers must be finite, got {text[:20]}")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _integer(text: str) -> int:
    if len(text) > 20:  # beyond 64 bits
        raise ValueError(f"integers have at most 20 digits, got {text[:20]}...")
    return int(text)


def _need(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _share(value: Any) -> bool:
    return value is None or (_number(value) and 0 <= value <= 1 + 1e-9)  # a weighted mean of ones may round up
