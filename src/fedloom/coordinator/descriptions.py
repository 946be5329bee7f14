"""Facts about a run before its first round, as its directory has them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data import Examples, Federation, Partition
from fedloom.data.inputs import IGNORED
from fedloom.storage import files

_SHOWN = 100  # clients whose classes are written down
_SAMPLED = 32  # examples
_LISTED = 1000  # classes up to which their numbers are written down: a vocabulary has more


def parts(federation: Federation) -> dict[str, Any]:
    """Return the fingerprints of a federation, whole and by part, so that a change can be named."""
    f = federation.begun or federation
    named: dict[str, Examples | Partition | None] = {
        "train": f.train,
        "partition": f.partition,
        "test": f.test,
        "local_test": f.local_test,
    }
    named |= {"local_val": f.local_val, "public": f.public}
    return {
        "clients": f.num_clients,
        "classes": f.num_classes,
        "partition": f.partition.name,
        "parts": {name: part.fingerprint() for name, part in named.items() if part is not None},
        "augment": f.train.augment,  # of which the fingerprints know nothing
        **({"arrives": f.arrives, "drift": f.drift} if f.changes else {}),
        **({} if f.train.preparation is None else {"table": f.train.preparation.facts}),
        **({} if (registry := f.train.remote) is None else {"devices": files.digest(json.dumps(registry).encode())}),
    }


def versions() -> dict[str, str]:
    """Return the versions of what results depend on."""
    from fedloom import __version__

    return {"fedloom": __version__, "torch": torch.__version__, "numpy": np.__version__}


def who_holds_what(federation: Federation) -> dict[str, Any]:
    """Return the examples by class of the first clients; and minimum, median, maximum and mean of the sizes of all."""
    shown = range(min(_SHOWN, federation.num_clients))
    y, sizes = federation.train.y.cpu().numpy(), federation.partition.sizes

    def counts(partition: Partition | None) -> list[list[int]] | None:
        if partition is None or not _lists_classes(federation):
            return None
        return [np.bincount(y[partition.rows(k)], minlength=federation.num_classes).tolist() for k in shown]

    return {
        "clients": federation.num_clients,
        "classes": federation.num_classes,
        "shown": list(shown),
        **({"arrives": plain(federation.arrives), "drift": plain(federation.drift)} if federation.changes else {}),
        **({"class_names": list(federation.train.classes)} if federation.train.classes else {}),
        **({"client_names": [named[k] for k in shown]} if (named := federation.partition.clients) else {}),
        **({"events": events} if (events := _events(federation.train.remote or {})) else {}),
        "data": {
            "name": federation.train.name,
            "partition": federation.partition.name,
            "sample": {n: _sample(part) for n in ("train", "test", "public") if (part := getattr(federation, n))},
        },
        **_targets(federation, shown),
        **_all_by_class(federation),
        "train": counts(federation.partition),
        "test": counts(federation.local_test),
        "sizes": {
            "min": int(sizes.min()),
            "median": float(np.median(sizes)),
            "max": int(sizes.max()),
            "mean": float(sizes.mean()),
        },
    }


def _events(registry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return which devices came later, left or changed, and when; their registrations are in devices.json."""
    return [{name: event[name] for name in ("round", "event", "client")} for event in registry.get("events", ())]


def _lists_classes(federation: Federation) -> bool:
    return federation.train.has_classes and federation.num_classes <= _LISTED


def _all_by_class(federation: Federation) -> dict[str, list[int]]:
    """Return how many training examples of each class all clients have together, those that are not shown too."""
    if not _lists_classes(federation):
        return {}
    y = federation.train.y.cpu().numpy()[federation.partition.indices]
    return {"train_by_class": np.bincount(y, minlength=federation.num_classes).tolist()}


def _targets(federation: Federation, shown: range) -> dict[str, Any]:
    """Return, of targets that are no classes, their names and the quartiles of each at the first clients, [k][D][5].

    They are minimum, lower quartile, median, upper quartile and maximum of the training examples; null for devices,
    which do not send them. Of tokens and pixels they are of how many targets of an example count.
    """
    train = federation.train
    if _lists_classes(federation):
        return {}
    if train.remote is not None:
        return {"targets": {"names": list(train.targets), "train": [None for _ in shown]}}
    if not train.y.is_floating_point():  # of each sequence or image so many count
        counted = (train.y != IGNORED).reshape(len(train), -1).sum(1).cpu().numpy()
        own = [counted[federation.partition.rows(k)] for k in shown]
        name = "pixels that count" if train.has_pixels else "targets of a sequence"
        return {"targets": {"names": [name], "train": [_quartiles(rows[:, None]) for rows in own]}}
    y = train.y.cpu().numpy().astype(np.float64).reshape(len(train), -1)
    own = [y[federation.partition.rows(k)] for k in shown]
    return {"targets": {"names": list(getattr(train, "targets", ())), "train": [_quartiles(rows) for rows in own]}}


def _quartiles(rows: npt.NDArray[Any]) -> list[list[float]] | None:
    return np.quantile(rows, (0, 0.25, 0.5, 0.75, 1), axis=0).T.tolist() if len(rows) else None


def _sample(examples: Examples) -> str:
    """Return a digest of a few examples and all labels; it tells data sets apart where fingerprints take too long."""
    rows = torch.linspace(0, len(examples) - 1, min(_SAMPLED, len(examples))).long()
    kept = examples.x[rows.to(examples.x.device)].cpu().contiguous()
    digest = hashlib.sha256(f"{tuple(examples.x.shape)} {kept.dtype} {examples.normalise}".encode())
    for tensor in (kept, examples.y.cpu().contiguous()):
        digest.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()[:16]


def plain(value: Any) -> Any:
    """Return a value as JSON has it: a dataclass as a mapping with its class as "kind", a non-finite number as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **{f.name: plain(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # an address is another one in the next process


def completed(stored: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return what an earlier version wrote down of `value`, with the settings that came since at their defaults.

    A new setting's default is what was done before there was one: {"kind": "FedProx", "mu": 0.1} was written of
    FedProx(mu=0.1, drop_percent=0.0), and not of FedProx(mu=0.1, drop_percent=0.5).
    """
    out = dict(stored)
    if is_dataclass(value):
        out = {f.name: plain(_default(f)) for f in fields(value) if _default(f) is not MISSING} | out
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    inner = value if isinstance(value, Mapping) else {}
    return {name: completed(v, inner.get(name)) if isinstance(v, Mapping) else v for name, v in out.items()}


def differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each entry that differs between two nested mappings: its full name, and its two values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from differences(old.get(name), new.get(name), f"{key}.{name}" if key else str(name))
    elif old != new:
        yield key, old, new


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()
