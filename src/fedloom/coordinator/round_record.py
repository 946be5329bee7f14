"""Describe the clients and messages of a round in its record, its seconds and its memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from fedloom.coordinator.evaluation import mean
from fedloom.coordinator.history import Record
from fedloom.engines.round_traffic import Traffic


def of_traffic(traffic: Traffic, clients: Sequence[int]) -> Record:
    """Return what a record says of a round that was just computed with these clients, before anything is evaluated."""
    failed = {str(f.client): f.reason for f in traffic.failed}
    exchanges: dict[str, list[int]] = {k: [] for k in failed}
    for f in traffic.failed:
        exchanges[str(f.client)].append(f.exchange)
    at = {k: numbers for k, numbers in exchanges.items() if numbers != [0]}
    losses = [traffic.losses[k] for k in sorted(traffic.losses) if str(k) not in failed]
    refused = "; ".join(f"{name}: {why}" if name else why for name, why in traffic.server_refused.items())
    return {
        "clients": [k for k in clients if k in traffic.asked],
        "failed": failed,
        **({"failed_at": at} if at else {}),
        **({"server_refused": refused} if refused else {}),
        **({"all_refused": traffic.refused} if traffic.refused and not traffic.accepted else {}),
        "train_loss": mean(losses),
        **({"server_loss": mean(traffic.server_losses.values())} if traffic.server_losses else {}),
        **traffic.noted,
        "bytes_down": sum(traffic.down.values()),
        "bytes_up": sum(traffic.up.values()),
        **{f"bytes_{k}": n for k, n in sorted(traffic.kinds.items()) if n},
    }


def peak_rss_mib() -> float | None:
    """Return the most memory that this process has held, in MiB; None where the system does not report it."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / (1 << 10)


class Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now
