"""Clients that do not answer: simulated ones, and those that a run with a deadline did not wait for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.core.choices import check_choices
from fedloom.core.errors import SettingError
from fedloom.core.random import derive
from fedloom.engines.links import Link, Question

Faults = Callable[[int, int, int], str | None]  # (round, exchange, client), all from 0 -> why it fails, or None
NOT_WITHIN = "no answer within"  # so begins why a client failed whose time was up


@dataclass(frozen=True)
class Unreliable:
    """Clients that decline, drop out or respond too late; a function of (seed, round, client).

    Probabilities per request, each in [0, 1], together at most 1:
    `declined`: the client refuses, at the first exchange of a round only.
    `lost`: it drops out, at any exchange. `late`: it responds after the deadline, at any exchange; its response and its
    new state are discarded. `late` is a mean over clients: slowness belongs to the client, most are rarely late.

    In each case the client counts as not selected in this exchange, and its state stays.
    """

    declined: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        each = {"declined": self.declined, "lost": self.lost, "late": self.late}
        if not (min(each.values()) >= 0 and math.fsum(each.values()) <= 1):
            raise SettingError(
                "the probabilities that a client declines, is lost or is late must be at least 0 and at most 1 "
                f"together, got {', '.join(f'{name} = {p}' for name, p in each.items())}: lower them"
            )

    def __call__(self, round: int, exchange: int, client: int) -> str | None:
        """Return why the client does not answer: "declined", "lost" or "late"; None if it answers."""
        declined = self.declined if exchange == 0 else 0.0
        u = _uniform(self.seed, "faults", round, exchange, client)
        if u < declined:
            return "declined"
        if u < declined + self.lost:
            return "lost"
        answered = 1.0 - declined - self.lost
        if self.late and u - declined - self.lost < answered * self._lateness(client, answered):
            return "late"
        return None

    def _lateness(self, client: int, answered: float) -> float:
        """Return the probability that the answer of a client is late.

        It is a power of a uniform number, and its mean over clients is late / answered. At a mean of 0.1, nine clients
        in ten are late less than 0.4 of the time, one in a hundred more than 0.9.
        """
        return math.pow(_uniform(self.seed, "slow", client), max(answered / self.late - 1.0, 0.0))


def lost_again(records: Sequence[Mapping[str, Any]], faults: Faults | None) -> Faults:
    """Return `faults` that also lose the clients for which a run did not wait, by its records.

    Which clients are late depends on machines, so a run is computed again by losing the same clients. A client that
    failed otherwise fails again by itself.
    """
    late: dict[tuple[int, int, int], str] = {}
    for record in records:
        for client, why in record.get("failed", {}).items():
            if why.startswith(NOT_WITHIN):
                exchanges = record.get("failed_at", {}).get(client, [0])
                late.update({(record["round"] - 1, exchange, int(client)): why for exchange in exchanges})

    def reason(round: int, exchange: int, client: int) -> str | None:
        simulated = None if faults is None else faults(round, exchange, client)
        return late.get((round, exchange, client)) if simulated is None else simulated

    return reason


def _uniform(seed: int, *words: int | str) -> float:
    """Return a uniform number in [0, 1), derived from the seed and the words."""
    return derive(seed, *words) / 2**62


class Lost(Link):
    """Clients that faults lose on the way."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def lost(self, question: Question) -> dict[int, str]:
        call = question.call
        reasons = {k: self.faults(call.round, int(call.exchange), k) for k in question.clients}
        return {k: why for k, why in reasons.items() if why is not None}


@dataclass(frozen=True)
class FaultsInWords:
    """Callable of faults that must return a reason as text, or None; False is refused."""

    faults: Faults

    def __call__(self, round: int, exchange: int, client: int) -> str | None:
        why = self.faults(round, exchange, client)
        if why is not None and not isinstance(why, str):
            raise SettingError(
                f"faults gives the reason in words why a client fails, and None for one that answers, got {why!r} for "
                f"client {client} in round {round + 1}: return 'switched off' or None"
            )
        return why
