"""Describe the clients and messages of a round in its record, its seconds and its memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedloom.coordinator.evaluation import finite, mean
from fedloom.coordinator.history import Record
from fedloom.core.json_types import COUNT, TEXT, Index, JsonType, listed, mapped, number, within
from fedloom.core.task_measures import TaskMeasure
from fedloom.engines.round_traffic import Traffic
from fedloom.evaluate.measure import Column, Entry, Measure

CLIENTS = JsonType(list[Index], "a list of client numbers")
REASONS = JsonType(dict[str, str], "a mapping of clients to reasons")


def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure]) -> tuple[Column, ...]:
    """Return what this module writes down of each round."""
    return (
        Entry("round", COUNT),
        Entry("clients", CLIENTS),
        Entry("failed", REASONS),
        Entry("failed_at", JsonType(dict[str, list[Index]], "a mapping of clients to lists of exchanges")),
        Entry("server_refused", TEXT),
        Entry("all_refused", COUNT),
        Measure(
            "train_loss", "Training loss", "training",
            "Mean over the clients of a round of the mean loss over the batches of their last local training. Extra "
            "terms of an algorithm count, so it compares rounds rather than methods.",
            unit="loss", better="low", tunable="partition",
        ),
        Measure(
            "server_loss", "Server loss", "server",
            "Mean loss over the steps of the server's last own training, in rounds with one.",
            unit="loss", better="low",
        ),
        Entry("client_*_by_client", JsonType(listed(float | None), "a list of numbers or null, as of clients")),
        Entry("client_*", number()),
        Entry("server_*", JsonType(float | bool | list[Any] | None, "a number that an algorithm notes, or a list")),
        Entry("bytes_down", COUNT),
        Entry("bytes_up", COUNT),
        Entry("bytes_*", COUNT),
        Entry("seconds", JsonType(mapped(within(0, None)), "a mapping of phases to numbers >= 0"), "timing.jsonl"),
        Entry("peak_rss_mib", number(), "timing.jsonl"),
    )  # fmt: skip


def notes_by_name(of_each: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    """Return what each of some clients has noted, in their order; None where one has no finite number."""
    names = dict.fromkeys(name for notes in of_each for name in notes)
    return {name: [finite(notes[name]) if name in notes else None for notes in of_each] for name in names}


def _of_notes(of_each: Sequence[dict[str, float]]) -> Record:
    """Return the means of what clients have noted, its spread, and the number of each; null where one has none.

    `of_each`: the notes of each client of the round. Numbers that are not finite are none.
    """
    out: Record = {}
    for name, values in notes_by_name(of_each).items():
        there = [value for value in values if value is not None]
        out[f"client_{name}"] = mean(there)
        out[f"client_{name}_std"] = float(np.std(there)) if there else None
        out[f"client_{name}_by_client"] = values
    return out


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
        **_of_notes([{} if str(k) in failed else traffic.notes.get(k, {}) for k in clients if k in traffic.asked]),
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
