"""The documents and logs of a run, read with distrust: an error names the file, the line and what is wrong with it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from fedloom.core.errors import DamageError, SettingError, StorageError
from fedloom.core.task_measures import LARGEST_SHARE
from fedloom.engines.by_name import EngineName
from fedloom.evaluate.measure import KNOWN, Measure
from fedloom.storage import files
from fedloom.storage.strict_json import LARGEST, MOST, Object, parse, short

FORMAT = 2
"""Layout of a run directory: of its manifest and of the indexes of its checkpoints."""
_DOCUMENT = re.compile(r"[a-z]+\.jsonl?|initial-[0-9]{1,9}\.safetensors")
_THREADS = 4096
_SEAL = b'"digest": "'


def metrics(folder: Path) -> list[Object]:
    """Return the records of metrics.jsonl, rounds in order."""
    if not (folder / "metrics.jsonl").is_file():
        raise SettingError(
            f"{folder} holds no run: metrics.jsonl is missing; name a directory that a run was written to"
        )
    return _log(folder / "metrics.jsonl")


def timing(folder: Path) -> list[Object]:
    """Return the records of timing.jsonl; none where there is no such file."""
    path = folder / "timing.jsonl"
    return _log(path) if path.is_file() else []


def per_client(folder: Path) -> list[Object]:
    """Return the records of clients.jsonl; none where there is no such file."""
    path = folder / "clients.jsonl"
    return _log(path) if path.is_file() else []


def _log(path: Path) -> list[Object]:
    with path.open("rb") as file:
        try:
            return list(records(path.name, iter(lambda: file.readline(MOST + 1), b"")))
        except ValueError as error:
            raise SettingError(
                f"{path}, {error}; restore the file, or read a copy that ends before this line"
            ) from None


def records(name: str, lines: Iterable[bytes]) -> Iterator[Object]:
    """Yield the records in the lines of the log `name`, rounds in order; a last line that was cut off is left out.

    Raises:
        ValueError: a line is not what a run writes; says which and why.
    """
    check = checker(name)
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


def checker(name: str) -> Callable[[Object], None]:
    """Return a function that is given the records of the log `name` in order.

    It raises ValueError where one is not what a run writes, or not of a later round than the one before.
    """
    previous, check = -1, _CHECKS[name]()

    def both(record: Object) -> None:
        nonlocal previous
        _need(_count(record.get("round")), "round", "an integer >= 0", record.get("round"))
        _need(record["round"] > previous, "round", f"larger than {previous}, the one before", record["round"])
        check(record)
        previous = record["round"]

    return both


_OF_HEADLINE = ("personal_worst_tenth", "global_on_clients", "global_on_clients_by_samples")  # in its unit
_NO_MEASURE = {"global_loss", "personal_std", "personal_worst_tenth", "personal_by_client"}


def _has_shares(record: Object) -> bool:
    """Return whether the headline of a record is a share: its first number of the global or of personal models."""
    whose = ("global_", "personal_", "val_")
    first = next((n for n in record if n.startswith(whose) and n not in _NO_MEASURE), "global_accuracy")
    return first in KNOWN and KNOWN[first].unit == "%"


def _metrics_check() -> Callable[[Object], None]:
    classes: set[int] = set()

    def check(record: Object) -> None:
        shares = _has_shares(record)
        for name in (n for n in record if n in KNOWN):
            measure, value = KNOWN[name], record[name]
            if name in _OF_HEADLINE and not shares:
                _need(_number_or_none(value), name, "a number or null", value)
                continue
            if measure.unit == "%":
                _need(_share(value), name, "a number in 0..1 or null", value)
            else:
                _need(_number_or_none(value), name, "a number or null", value)
        _need(_share(record.get("threshold")), "threshold", "a number in 0..1 or null", record.get("threshold"))
        for name in (n for n in record if n.startswith("bytes_")):
            _need(_count(record.get(name, 0)), name, "an integer >= 0", record.get(name))
        clients = record.get("clients", [])
        _need(_list(clients) and all(map(_count, clients)), "clients", "a list of client numbers", clients)
        for name in ("failed", "new_failed"):
            failed = record.get(name, {})
            ok = isinstance(failed, dict) and all(isinstance(v, str) for v in failed.values())
            _need(ok, name, "a mapping of clients to reasons", failed)
        at = record.get("failed_at", {})
        ok = isinstance(at, dict) and all(_list(v) and all(map(_count, v)) for v in at.values())
        _need(ok, "failed_at", "a mapping of clients to lists of exchanges", at)
        refused = record.get("server_refused", "")
        _need(isinstance(refused, str), "server_refused", "a reason", refused)
        by_client = record.get("personal_by_client", {})
        fits, kind = (_share, "numbers in 0..1") if shares else (_number, "numbers")
        ok = isinstance(by_client, dict) and all(v is not None and fits(v) for v in by_client.values())
        _need(ok, "personal_by_client", f"a mapping of clients to {kind}", by_client)
        new = record.get("new_by_client", {})
        ok = isinstance(new, dict) and all(isinstance(by, dict) for by in new.values())
        ok = ok and all(v is None or fits(v) for by in new.values() for v in by.values())
        _need(ok, "new_by_client", f"a mapping of ways to clients to {kind} or null", new)
        others = record.get("new_others_by_client", {})
        ok = isinstance(others, dict) and all(isinstance(of, dict) for of in others.values())
        columns = [by for of in others.values() for by in of.values()] if ok else []
        ok = ok and all(isinstance(by, dict) and all(map(_number_or_none, by.values())) for by in columns)
        _need(ok, "new_others_by_client", "a mapping of ways to measures to clients to numbers or null", others)
        by_class = record.get("class_accuracy")
        if by_class is not None:
            ok = _list(by_class) and all(map(_share, by_class))
            _need(ok, "class_accuracy", "a list of numbers in 0..1 or null", by_class)
            classes.add(len(by_class))
            _need(len(classes) == 1, "class_accuracy", "as long as in the rounds before", by_class)

    return check


def _timing_check() -> Callable[[Object], None]:
    def check(record: Object) -> None:
        seconds = record.setdefault("seconds", {})
        ok = isinstance(seconds, dict) and all(_number(s) and s >= 0 for s in seconds.values())
        _need(ok, "seconds", "a mapping of phases to numbers >= 0", seconds)
        peak = record.get("peak_rss_mib")
        _need(peak is None or _number(peak), "peak_rss_mib", "a number or null", peak)

    return check


_COLUMN = {field.name for field in fields(Measure)}
_COUNTED = ("clients", "examples", "train_examples")


def _clients_check() -> Callable[[Object], None]:
    def check(record: Object) -> None:
        for part in ("judged", "trained"):
            columns = record.get(part, {"clients": []})
            ok = isinstance(columns, dict) and _list(columns.get("clients")) and all(map(_list, columns.values()))
            _need(ok, part, "a mapping of names to lists, clients among them", columns)
            clients = columns["clients"]
            _need(all(map(_count, clients)), f"{part}.clients", "a list of client numbers", clients)
            for name, values in columns.items():
                _need(len(values) == len(clients), f"{part}.{name}", "as long as clients", values)
                counted = name in _COUNTED or name.endswith("_right")
                fits = _truth if name == "own" else _count_or_none if counted else _number_or_none
                _need(all(map(fits, values)), f"{part}.{name}", "a list of what it counts", values)
        if "trained" in record:
            missing = [name for name in ("clients", "trained") if name not in record["trained"]]
            _need(not missing, "trained", "a mapping with clients and trained", missing)

    return check


_CHECKS = {"metrics.jsonl": _metrics_check, "timing.jsonl": _timing_check, "clients.jsonl": _clients_check}


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
    _need(_count(written), "format", "an integer", written)
    if written == FORMAT and "initial" in facts and not facts.keys() & {"unproved", "later"}:
        return
    raise StorageError(
        f"{folder} holds a run of format {written}{' in an early form' if written == FORMAT else ''}, and format "
        f"{FORMAT} is read: run it again; its metrics.jsonl is plain text"
    )


def _check_manifest(facts: Object) -> None:
    """Raise ValueError unless everything in a manifest that is used is of the right kind."""
    for name in ("run", "fixed", "federation"):
        _need(isinstance(facts.get(name), dict), name, "a mapping", facts.get(name))
    run, fixed = facts["run"], facts["fixed"]
    threads, chunks, every = fixed.get("threads"), fixed.get("chunks"), run.get("checkpoint_every")
    asked = run.get("threads")
    _need(_between(threads, 1, _THREADS), "fixed.threads", f"an integer in 1..{_THREADS}", threads)
    _need(asked in (None, threads), "fixed.threads", f"{asked}, as run.threads", threads)
    ok = chunks is None or (isinstance(chunks, dict) and all(_between(c, 1, 1 << 31) for c in chunks.values()))
    _need(ok, "fixed.chunks", "a mapping of architectures to integers >= 1", chunks)
    for kind in ("rows", "pools"):
        rows = fixed.get(kind, [])
        _need(_list(rows) and all(isinstance(name, str) for name in rows), f"fixed.{kind}", "a list of names", rows)
    engine, engines = facts.get("engine"), get_args(EngineName)[1:]  # without auto
    _need(engine in engines, "engine", f"one of {', '.join(engines)}", engine)
    for name, value in (("engine_reason", facts.get("engine_reason")), ("fixed.compilation", fixed.get("compilation"))):
        _need(isinstance(value, str), name, "a text", value)
    clients = facts["federation"].get("clients")
    _need(_between(clients, 1, 1 << 40), "federation.clients", "an integer >= 1", clients)
    _need(_between(every, 1, 1 << 40), "run.checkpoint_every", "an integer >= 1", every)
    named: Any = facts.get("documents")
    ok = isinstance(named, dict) and all(_list(d) and all(isinstance(one, str) for one in d) for d in named.values())
    _need(ok and all(_DOCUMENT.fullmatch(n) for n in named), "documents", "names and digests", named)
    columns: Any = facts.get("columns", [])
    ok = _list(columns) and all(isinstance(c, dict) and c.keys() == _COLUMN and _texts(c.values()) for c in columns)
    _need(ok, "columns", f"a list of mappings of {', '.join(sorted(_COLUMN))} to texts", columns)
    start = facts.get("start", {"file": "", "digest": ""})
    for name, texts in (("initial", facts["initial"]), ("start", start)):
        _need(isinstance(texts, dict) and _texts(texts.values()), name, "a mapping to texts", texts)
    _need(set(start) == {"file", "digest"}, "start", "a file and its digest", start)


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
    try:
        return understood(data)
    except ValueError as error:
        raise SettingError(f"{path}: {error}; restore the file or remove it") from None


def federation(path: Path) -> Object:
    """Return federation.json: who holds how many examples of which class; empty where there is no such file."""
    facts = mapping(path)
    if not facts:
        return {}
    try:
        for name in ("clients", "classes"):
            _need(_count(facts.get(name)) and facts[name] > 0, name, "an integer >= 1", facts.get(name))
        shown: Any = facts.get("shown")
        ok = _list(shown) and all(map(_count, shown)) and len(shown) <= facts["clients"]
        _need(ok, "shown", "a list of client numbers", shown)
        for name in ("train", "test"):
            table: Any = facts.get(name)
            if table is None and (name == "test" or "targets" in facts):
                continue
            ok = _list(table) and len(table) == len(shown)
            ok = ok and all(_list(row) and len(row) == facts["classes"] and all(map(_count, row)) for row in table)
            _need(ok, name, f"{len(shown)} lists of {facts['classes']} integers >= 0", table)
        every: Any = facts.get("train_by_class", [0] * facts["classes"])
        ok = _list(every) and len(every) == facts["classes"] and all(map(_count, every))
        _need(ok, "train_by_class", f"{facts['classes']} integers >= 0", every)
        for name, count in (("class_names", facts["classes"]), ("client_names", len(shown))):
            names: Any = facts.get(name, [])
            ok = _list(names) and len(names) in (0, count) and all(isinstance(n, str) for n in names)
            _need(ok, name, f"a list of {count} texts", names)
        sizes = facts.get("sizes", {})
        _need(isinstance(sizes, dict) and all(map(_number, sizes.values())), "sizes", "a mapping to numbers", sizes)
    except ValueError as error:
        raise SettingError(f"{path}: {error}; restore the file or remove it") from None
    return facts


def natural(text: str) -> list[tuple[int, int, str]]:
    """Return a key by which names sort as people count: seed-2 before seed-10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return [(0, int(p), p) if p[0] in "0123456789" else (1, 0, p) for p in parts]


def _need(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {short(value)}")


def _texts(values: Iterable[Any]) -> bool:
    return all(isinstance(text, str) for text in values)


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _count_or_none(value: Any) -> bool:
    return value is None or _count(value)


def _number_or_none(value: Any) -> bool:
    return value is None or _number(value)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _between(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _share(value: Any) -> bool:
    return value is None or (_number(value) and 0 <= value <= LARGEST_SHARE)
