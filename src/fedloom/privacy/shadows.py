"""Shadow runs, and the likelihood ratio attack on membership that they allow.

Carlini, Chien, Nasr, Song, Terzis, Tramèr, "Membership Inference Attacks From First Principles", S&P 2022,
arXiv:2112.03570, its offline variant: of each example, how sure models are that were trained without it says how
unusual the model at hand is. Shadows come in pairs: what one leaves out, the other has.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.coordinator import Job
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.history import History
from fedloom.coordinator.rounds import Coordinator
from fedloom.core.errors import SettingError
from fedloom.core.random import derive, generator
from fedloom.data.partition import Partition

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_FEW = 64  # shadows, below which all examples share a standard deviation, as in the paper


def half(count: int, seed: int, number: int, *words: int | str) -> Bools:
    """Return which of some examples a shadow has, [count]: a half, drawn at random, or the other half.

    Args:
        count: how many examples.
        seed: of the run.
        number: of the shadow; 2 i and 2 i + 1 have the two halves.
        *words: whose examples.
    """
    chosen = generator(seed, "shadow", number // 2, *words).permutation(count) < -(-count // 2)
    return chosen if number % 2 == 0 else ~chosen


def shadow(job: Job, number: int) -> Job:
    """Return the run with half of each client's training examples, and another seed; a single example stays.

    Args:
        job: the run.
        number: of the shadow.
    """
    parts, seed = job.federation.partition, job.settings.seed
    kept = [parts.rows(k)[half(n, seed, number, k) | (n == 1)] for k, n in enumerate(parts.sizes.tolist())]
    fewer = Partition(np.cumsum([0, *map(len, kept)]), np.concatenate(kept), f"shadow {number}", clients=parts.clients)
    settings = replace(job.settings, seed=derive(seed, "shadow", number) % 2**32)
    return replace(job, federation=replace(job.federation, partition=fewer), settings=settings, described=None, code={})


def trained(job: Job, count: int, folder: Path, show: Callable[[int, str], None] | None) -> list[tuple[Path, Job]]:
    """Train shadows of a run that are not there yet, go on with one that was killed, and return their directories.

    Args:
        job: the run.
        count: how many shadows.
        folder: in which each has a directory; it may be that of a run.
        show: is told how many rounds of all shadows are done.

    Raises:
        SettingError: there is no pair of them.
    """
    if count < 2 or count % 2:
        raise SettingError(f"shadows come in pairs, got {count}: name an even number, such as 16")
    made = [(folder / f"{number:03}", shadow(job, number)) for number in range(count)]
    for number, (directory, one) in enumerate(made):

        def rounds(history: History, number: int = number) -> None:
            if show is not None:
                done = number * job.settings.rounds + len(history.metrics) - 1
                show(done, f"shadow {number + 1} of {count}")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were said of the run
            files = RunDirectory(directory, one.settings.keep_every)
            if not files.begun:  # within another run, where nobody else begins one
                one.check()
                with files:
                    files.begin(Coordinator(one).documents())
            one.run(directory, resume=True, on_round=rounds)
    return made


def confidence(losses: Floats) -> Floats:
    """Return log(p / (1 - p)) of the probabilities p of the true classes, by losses -log(p)."""
    with np.errstate(divide="ignore"):
        return np.asarray((-losses - np.log(-np.expm1(-losses))).clip(-100, 100))


def likelihood_scores(seen: Floats, shadows: Floats, inside: Bools) -> Floats:
    """Return by how many standard deviations each example is beyond what models without it say of it, [n].

    Args:
        seen: confidence of the model at hand, [n].
        shadows: that of each shadow, [N, n].
        inside: which examples each shadow has, [N, n].
    """
    outside = np.where(inside, np.nan, shadows)
    mean = np.nanmean(outside, axis=0)
    left = (~inside).sum(0)
    squares = np.nansum((outside - mean) ** 2, axis=0)
    if len(shadows) < _FEW:
        std = np.sqrt(squares.sum() / max(1, int((left - 1).sum()))) * np.ones_like(mean)
    else:
        std = np.sqrt(squares / (left - 1))
    return np.asarray((seen - mean) / np.maximum(std, 1e-6))


def most_found(false_alarms: Floats, epsilon: float, delta: float) -> Floats:
    """Return the largest share of members that may be found by (epsilon, delta), at shares of false alarms."""
    factor = np.exp(min(epsilon, 700.0))  # more overflows
    either = np.minimum(factor * false_alarms + delta, 1 - (1 - false_alarms - delta) / factor)
    return np.asarray(either.clip(0, 1))
