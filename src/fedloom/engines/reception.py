"""How devices come to a run: they are told what it asks for, register, and get a number and a token."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.core.errors import RefusedError
from fedloom.engines.fleet import RankFleet
from fedloom.engines.registration import CAP, Registration, Registry
from fedloom.engines.service import LIMIT

_MOST = 1 << 22  # bytes of a registration


def receive(
    fleet: RankFleet,
    path: Path,
    settings: Mapping[str, Any],
    models: Sequence[str],
    *,
    test: str = "",
    cap: int = CAP,
) -> Registry:
    """Register the devices at all ranks in the file `path`, or admit those that it names, and tell each its number.

    `models`: the architectures that devices may have. `cap`: examples that count of one device.

    Raises:
        SettingError: no device could be registered, or they hold examples that are not alike.
    """
    old = Registry.read(path) if path.exists() else None
    run = secrets.token_hex(16) if old is None else old.run
    fleet.manager.limit = _MOST
    found: dict[int, Registration] = {}
    refused: dict[int, str] = {}
    for rank, data in sorted(fleet.introduce(json.dumps({"run": run, "settings": settings}).encode()).items()):
        try:
            one = _read(data)
            if one.id in {each.id for each in found.values()}:
                raise RefusedError(f"device {one.id} has joined at another rank")
            if (smaller := one.capped(cap)) != one:
                fleet.audit(
                    "capped", one.id, f"it holds {sum(one.train)} examples, of which {sum(smaller.train)} count"
                )
            found[rank] = smaller if old is None else old.admit(smaller)
        except RefusedError as error:
            refused[rank] = str(error)
            fleet.audit("refused", f"rank {rank}", str(error))
    fleet.manager.limit = LIMIT
    registry = old or Registry.of(run, list(found.values()), models, test)
    registry.save(path)
    fleet.names = registry.names
    fleet.tokens = {name: secrets.token_hex(16) for name in registry.names}
    for rank, one in found.items():
        client = fleet.names.index(one.id)
        fleet.ranks[one.id] = rank
        own = registry.devices[client]
        said = {"client": client, "model": own.model, "token": fleet.tokens[one.id]}
        fleet.tell(rank, json.dumps(said).encode())
        fleet.audit("joined", one.id, client=client, examples=sum(own.train), model=own.model)
    for rank, why in refused.items():
        fleet.tell(rank, json.dumps({"refused": why}).encode())
    return registry


def _read(data: bytes) -> Registration:
    try:
        return Registration.of(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"it has not registered: {error!s:.80}") from None
