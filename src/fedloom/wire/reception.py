"""How devices come to a run: they are told what it asks for, register, get a number, a token and public examples."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import CodecError, RefusedError, SettingError
from fedloom.data import Examples, Normalise
from fedloom.storage.strict_json import parse
from fedloom.wire.fleet import RankFleet
from fedloom.wire.registration import Registration, Registry, cap_of
from fedloom.wire.service import LIMIT
from fedloom.wire.transport import pack, short, unpack

_MOST = 1 << 22  # bytes of a registration


def receive(
    fleet: RankFleet,
    path: Path,
    settings: Mapping[str, Any],
    models: Sequence[str],
    *,
    test: str = "",
    cap: int | None = None,
    public: bool = False,
    fits: Callable[[], object] = lambda: None,
    wait: float | None = None,
    least: int | None = None,
) -> Registry:
    """Register the devices at all ranks in the file `path`, or admit those that it names, and tell each its number.

    `models`: the architectures that devices may have. `cap`: examples that count of one device; None: as when the run
    began, at first `cap_of` those that register. `public`: whether public examples follow, see `hand_out`. `fits`:
    raises SettingError if the run cannot begin with these devices, which `path` and `fleet.names` say. `wait`: after
    this number of seconds the run begins with the devices that have come, if these are at least `least` (None: all that
    are not refused). A registered one that comes later is let in then.

    Raises:
        SettingError: no device could be registered, too few came, they hold examples that are not alike, or they do not
            fit. All of them hear why, and a `path` that is new is gone again.
    """
    old = Registry.read(path) if path.exists() else None
    _check_cap(cap, old)
    run = secrets.token_hex(16) if old is None else old.run
    fleet.manager.limit = _MOST
    found: dict[int, Registration] = {}
    refused: dict[int, str] = {}
    hello = json.dumps({"run": run, "settings": settings}).encode()
    for rank, data in sorted(fleet.introduce(hello, wait).items()):
        try:
            found[rank] = _registered(data, [each.id for each in found.values()])
        except RefusedError as error:
            refused[rank] = str(error)
    if cap is not None:
        most = cap
    elif old is not None:
        most = old.cap
    else:  # what counts of a device depends on all of them
        most = cap_of([*found.values()])
    for rank, one in list(found.items()):
        try:
            smaller = _capped(fleet, one, most)
            found[rank] = smaller if old is None else old.admit(smaller)
        except RefusedError as error:
            del found[rank]
            refused[rank] = str(error)
    for rank, why in sorted(refused.items()):
        fleet.audit("refused", f"rank {rank}", why)
    try:
        if len(found) < (least := fleet.manager.size - 1 - len(refused) if least is None else least):
            raise SettingError(
                f"{len(found)} of at least {least} devices have come within {0 if wait is None else wait:g} s: wait "
                f"longer (--wait), or begin with fewer (--least {max(1, len(found))})"
            )
        registry = old or Registry.of(run, list(found.values()), models, test, most)
        registry.save(path)
        fleet.names = registry.names
        fits()
    except SettingError as error:
        if old is None:
            path.unlink(missing_ok=True)
        _turn_away(fleet, dict.fromkeys(found, f"the run does not begin: {error}") | refused)
        raise
    fleet.tokens = {name: secrets.token_hex(16) for name in registry.names}
    for rank, one in found.items():
        _welcome(fleet, registry, rank, one.id, public)
    _turn_away(fleet, refused)

    def admit(rank: int, data: bytes) -> None:
        try:
            one = registry.admit(_capped(fleet, _registered(data, fleet.ranks), most))
            _welcome(fleet, registry, rank, one.id, public)
        except RefusedError as error:
            fleet.audit("refused", f"rank {rank}", str(error))
            fleet.tell(rank, json.dumps({"refused": str(error)}).encode())

    fleet.admit, fleet.wait = admit, wait
    return registry


def _registered(data: bytes, connected: Collection[str]) -> Registration:
    """Return what a device has registered.

    Raises:
        RefusedError: it is no registration, or of a device that is there already.
    """
    one = _read(data)
    if one.id in connected:
        raise RefusedError(f"device {one.id} has joined at another rank")
    return one


def _capped(fleet: RankFleet, one: Registration, cap: int) -> Registration:
    """Return a registration with the examples that count."""
    if (smaller := one.capped(cap)) != one:
        fleet.audit("capped", one.id, f"it holds {sum(one.train)} examples, of which {sum(smaller.train)} count")
    return smaller


def _welcome(fleet: RankFleet, registry: Registry, rank: int, id: str, public: bool) -> None:
    """Tell a device its number, its architecture and its token: from now on it can be asked."""
    client = fleet.names.index(id)
    fleet.ranks[id] = rank
    own = registry.devices[client]
    said = {"client": client, "model": own.model, "token": fleet.tokens[id], "public": public}
    fleet.tell(rank, json.dumps(said).encode())
    if fleet.public is not None:
        fleet.tell(rank, fleet.public)
    fleet.audit("joined", id, client=client, examples=sum(own.train), model=own.model)


def _check_cap(cap: int | None, old: Registry | None) -> None:
    if cap is None:
        return
    if cap < 1:
        raise SettingError(f"of each device at least 1 example counts, got {cap}: raise --most-examples")
    if old is not None and old.cap != cap:
        raise SettingError(
            f"the run began with --most-examples {old.cap}, by which its devices are registered, got {cap}: leave it "
            "out"
        )


def _turn_away(fleet: RankFleet, why: Mapping[int, str]) -> None:
    for rank, words in why.items():
        fleet.tell(rank, json.dumps({"refused": words}).encode())
    fleet.settle()


def hand_out(fleet: RankFleet, public: Examples, *, labels: bool) -> None:
    """Send the public examples to the devices that are there and to those that come later.

    Their labels are sent too where these are to be known.
    """
    n = public.normalise
    head = {"normalise": [n.mean, n.std, n.scale], "labels": labels}
    fleet.public = pack(head, {"x": public.x} | ({"y": public.y} if labels else {}))
    for rank in list(fleet.ranks.values()):
        fleet.tell(rank, fleet.public)
    fleet.settle()


def handed_out(data: bytes, like: Examples, limit: int = LIMIT) -> tuple[Examples, bool]:
    """Return (public examples, whether their labels are known) from what the server has sent.

    The examples are like the device's own.

    Raises:
        RefusedError: they are not, or it is no such message.
    """

    def check(head: dict[str, Any], name: str, part: Any) -> None:
        kinds = {"x": (like.x.dtype, like.shape), "y": (torch.int64, ())}
        if name not in kinds or not isinstance(part, Tensor) or (part.dtype, tuple(part.shape[1:])) != kinds[name]:
            raise CodecError(f"they must be {like.x.dtype} of {like.shape}, got {name[:80]!r}: {short(part)}")

    try:
        message = unpack(data, check=check, limit=limit)
        mean, std, scale = message.head["normalise"]
        x, labels = message.parts["x"], message.head["labels"] is True
        y = message.parts["y"] if labels else torch.zeros(len(x), dtype=torch.int64)
        made = Normalise(tuple(map(float, mean)), tuple(map(float, std)), float(scale))
        return Examples(x, y, like.num_classes, made, "public examples"), labels
    except (CodecError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"these are no public examples for this device: {error}") from None


def _read(data: bytes) -> Registration:
    try:
        return Registration.of(parse(data, _MOST))
    except ValueError as error:
        raise RefusedError(f"it has not registered: {error!s:.80}") from None
