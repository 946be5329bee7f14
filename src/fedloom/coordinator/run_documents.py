"""The documents and logs of a run, read with distrust: an error names the file, the line and what is wrong with it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Le, Len

from fedloom.coordinator.record_entries import Entries, entries_of
from fedloom.core.errors import DamageError, SettingError, StorageError
from fedloom.core.json_types import (
    COUNT,
    MAPPING,
    NAMES,
    POSITIVE,
    TEXT,
    TEXTS,
    Index,
    JsonType,
    listed,
    mapped,
    matching,
    one_of,
    whole,
)
from fedloom.engines.by_name import EngineName
from fedloom.storage import files
from fedloom.storage.strict_json import LARGEST, MOST, Object, parse, short

FORMAT = 2
"""Layout of a run directory: of its manifest and of the indexes of its checkpoints."""
_DOCUMENT = r"[a-z]+\.jsonl?|initial-[0-9]{1,9}\.safetensors"
_SEAL = b'"digest": "'


def check_there(folder: Path) -> None:
    """Raise SettingError unless a folder holds a run."""
    if not (folder / "metrics.jsonl").is_file():
        raise SettingError(
            f"{folder} holds no run: metrics.jsonl is missing; name a directory that a run was written to"
        )


def logs(folder: Path, facts: Object) -> list[list[Object]]:
    """Return the records of metrics.jsonl, timing.jsonl and clients.jsonl, rounds in order; none of a log that is not.

    `facts`: those of the manifest, which says what records may hold; somebody may have made it by hand.
    """
    with _blaming(folder / "manifest.json"):
        entries = entries_of(facts)
    return [_log(folder / name, entries) for name in ("metrics.jsonl", "timing.jsonl", "clients.jsonl")]


def _log(path: Path, entries: Entries) -> list[Object]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        try:
            return list(records(path.name, iter(lambda: file.readline(MOST + 1), b""), entries))
        except ValueError as error:
            raise SettingError(
                f"{path}, {error}; restore the file, or read a copy that ends before this line"
            ) from None


def records(name: str, lines: Iterable[bytes], entries: Entries) -> Iterator[Object]:
    """Yield the records in the lines of the log `name`, rounds in order; a last line that was cut off is left out.

    Raises:
        ValueError: a line is not what a run writes; says which and why.
    """
    check = checker(name, entries)
    for number, line in enumerate(lines, 1):
        try:
            record = parse(line)
        except ValueError as error:
            if len(line) <= MOST and not line.endswith(b"\n"):
                return  # cut off when the run was killed
            raise ValueError(f"line {number}: {error}") from None
        try:
            check(record)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        yield record


def checker(name: str, entries: Entries) -> Callable[[Object], None]:
    """Return a function that is given the records of the log `name` in order.

    It raises ValueError where one is not what a run writes, or not of a later round than the one before.
    """
    previous, classes = -1, set[int]()

    def check(record: Object) -> None:
        nonlocal previous
        round = record.get("round")
        _check(COUNT, round, "round")
        _need(record["round"] > previous, "round", f"larger than {previous}, the one before", round)
        previous = record["round"]
        for key, value in record.items():
            if (kind := entries.kind(name, key)) is not None:
                _check(kind, value, key)
        if name == "timing.jsonl":
            record.setdefault("seconds", {})
        if name == "clients.jsonl":
            _check_clients(record, entries)
        if (by_class := record.get("class_accuracy")) is not None:
            classes.add(len(by_class))
            _need(len(classes) == 1, "class_accuracy", "as long as in the rounds before", by_class)

    return check


def _check_clients(record: Object, entries: Entries) -> None:
    """Raise ValueError unless the columns of a record of clients are what they are, and as long as its clients."""
    for part in ("judged", "trained", "noted"):
        columns = record.get(part, {"clients": [], "trained": []})
        needed = {"clients", "trained"} if part == "trained" else {"clients"}
        ok = isinstance(columns, dict) and needed <= columns.keys()
        _need(ok, part, f"a mapping of names to lists, {' and '.join(sorted(needed))} among them", columns)
        for name, values in columns.items():
            if (kind := entries.kind("clients.jsonl", f"{part}.{name}")) is not None:
                _check(kind, values, f"{part}.{name}")
            _need(len(values) == len(columns["clients"]), f"{part}.{name}", "as long as clients", values)


def sealed(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return a document as JSON that ends with the digest of all that stands before it."""
    text = json.dumps(content, indent=indent, allow_nan=False)
    head = (text[:-1].rstrip() + (", " if indent is None else ",\n" + " " * indent)).encode()
    return _with_seal(head)


def unsealed(data: bytes) -> Object:
    """Return what `sealed` was given.

    Raises:
        ValueError: it is not what was written.
    """
    content = parse(data, LARGEST)
    if data != _with_seal(data.rpartition(_SEAL)[0]):
        raise ValueError("its digest is that of other content: it was changed")
    del content["digest"]
    return content


def _with_seal(head: bytes) -> bytes:
    return head + _SEAL + files.digest(head).encode() + b'"\n}\n'


def manifest(folder: Path) -> Object:
    """Return manifest.json of a run; everything in it that is used is of the right kind.

    Raises:
        DamageError: it is missing, it is not what was written, or not what a run writes.
        StorageError: the run is of another format, or the file cannot be read.
    """
    path = folder / "manifest.json"
    try:
        data = files.load(path)
    except DamageError as error:
        raise DamageError(f"{folder} holds no run that can be read: {error}") from None
    try:
        _check_format(folder, parse(data))
        facts = unsealed(data)
        _check_manifest(facts)
    except ValueError as error:
        raise DamageError(f"{path} is damaged: {error}") from None
    return facts


def _check_format(folder: Path, facts: Object) -> None:
    """Raise StorageError if a run is of another format than is read, ValueError if its manifest names none.

    The early form of format 2 had no `initial`; a run that went on from an early format has `unproved` or `later`.
    """
    written = facts.get("format")
    _check(JsonType(int, "an integer"), written, "format")
    if written == FORMAT and "initial" in facts and not facts.keys() & {"unproved", "later"}:
        return
    raise StorageError(
        f"{folder} holds a run of format {written}{' in an early form' if written == FORMAT else ''}, and format "
        f"{FORMAT} is read: run it again; its metrics.jsonl is plain text"
    )


def _check_manifest(facts: Object) -> None:
    """Raise ValueError unless everything in a manifest that is used is of the right kind."""
    for where, kind in _MANIFEST.items():
        outer, _, inner = where.rpartition(".")
        _check(kind, (facts[outer] if outer else facts).get(inner, _DEFAULTS.get(where)), where)
    threads, asked = facts["fixed"]["threads"], facts["run"].get("threads")
    _need(asked in (None, threads), "fixed.threads", f"{asked}, as run.threads", threads)
    entries_of(facts)


_MANIFEST = {
    **dict.fromkeys(("run", "fixed", "federation"), MAPPING),
    "fixed.threads": whole(1, 4096),
    "fixed.chunks": JsonType(
        dict[str, Annotated[int, Ge(1), Le(1 << 31)]] | None, "a mapping of architectures to integers >= 1"
    ),
    **dict.fromkeys(("fixed.rows", "fixed.pools"), NAMES),
    "engine": one_of(get_args(EngineName)[1:]),  # without auto
    **dict.fromkeys(("engine_reason", "fixed.compilation"), TEXT),
    **dict.fromkeys(("federation.clients", "run.checkpoint_every"), POSITIVE),
    "documents": JsonType(mapped(list[str], matching(_DOCUMENT)), "names and digests"),
    "initial": TEXTS,
    "start": JsonType(Annotated[dict[Literal["file", "digest"], str], Len(2, 2)], "a file and its digest"),
}
_DEFAULTS: Object = {"fixed.rows": [], "fixed.pools": [], "start": {"file": "", "digest": ""}}


def mapping(path: Path) -> Object:
    """Return the object in a JSON file; empty where there is no such file."""
    return _document(path, parse)


def proved(path: Path) -> Object:
    """Return what was `sealed` in a file; empty where there is no such file."""
    return _document(path, unsealed)


def _document(path: Path, understood: Callable[[bytes], Object]) -> Object:
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        data = file.read(min(os.fstat(file.fileno()).st_size, MOST) + 1)  # memory is taken for all that is asked for
    with _blaming(path):
        return understood(data)


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Name a document that is not what a run writes."""
    try:
        yield
    except ValueError as error:
        raise SettingError(f"{path}: {error}; restore the file or remove it") from None


def federation(path: Path) -> Object:
    """Return federation.json: who holds how many examples of which class; empty where there is no such file."""
    facts = mapping(path)
    if not facts:
        return {}
    with _blaming(path):
        for name, kind in _FEDERATION.items():
            _check(kind, facts.get(name, {} if name == "sizes" else None), name)
        shown, classes = len(facts["shown"]), facts["classes"]
        _need(shown <= facts["clients"], "shown", "a list of client numbers, no more than clients", facts["shown"])
        for name in ("train", "test"):
            if facts.get(name) is not None or (name == "train" and "targets" not in facts):
                _check(
                    _listed(Annotated[list[Index], Len(classes, classes)], shown, f"lists of {classes} integers >= 0"),
                    facts.get(name),
                    name,
                )
        if "train_by_class" in facts:
            _check(_listed(Index, classes, "integers >= 0"), facts["train_by_class"], "train_by_class")
        for name, count in (("class_names", classes), ("client_names", shown)):
            if facts.get(name, []) != []:
                _check(_listed(str, count, "texts", "a list of "), facts[name], name)
    return facts


_FEDERATION = {
    **dict.fromkeys(("clients", "classes"), POSITIVE),
    "shown": JsonType(list[Index], "a list of client numbers"),
    "sizes": JsonType(dict[str, float], "a mapping to numbers"),
}


def _listed(each: Any, count: int, words: str, before: str = "") -> JsonType:
    return JsonType(Annotated[listed(each), Len(count, count)], f"{before}{count} {words}")


def natural(text: str) -> list[tuple[int, int, str]]:
    """Return a key by which names sort as people count: seed-2 before seed-10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return [(0, int(p), p) if p[0] in "0123456789" else (1, 0, p) for p in parts]


def _need(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {short(value)}")


def _check(kind: JsonType, value: Any, name: str) -> None:
    _need(kind.fits(value), name, kind.words, value)
