"""Readings of a run: its rounds in a few numbers."""

from __future__ import annotations

from typing import NamedTuple


class Reached(NamedTuple):
    """Cost of reaching a target: rounds, bytes (down and up, all clients), seconds (phases not `MEASURING`)."""

    rounds: int
    bytes: int
    seconds: float  # NaN where a round was not timed


class Summaries(NamedTuple):
    """One measured number of a run, read in five ways: papers use each of them, and they differ. NaN: not known.

    `last`: where it was measured last. `tail`: mean over the last rounds (`newest`), or over as many as were asked for,
    of the values that these have; the newest of all where it was measured in none of them (`eval_every`).
    `validated`: in the round that is best on validation data. `best`: over rounds, which is optimistic, since it
    chooses the round by what it reports. `mean`: over all rounds that have it, with that before training. Where it was
    undefined when it was measured last (`null`, as of a model that diverged), `last`, `tail` and `mean` are unknown.
    """

    last: float
    tail: float
    validated: float
    best: float
    mean: float
