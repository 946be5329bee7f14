"""A battery of tests for any algorithm, yours included: `check(MyAlgorithm)` in a test of your own.

It runs the algorithm on a tiny federation of six ragged clients, some never asked, and holds it to what every algorithm
promises: the same answer on every engine, nobody's data in anybody else's answer, states that can be saved, clients
that may vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedloom.core.algorithm import Algorithm
from fedloom.core.model import Model
from fedloom.core.optimiser import Local
from fedloom.testing.checks import CHECKS
from fedloom.testing.subject import Subject

__all__ = ["CHECKS", "Subject", "check"]


def check(
    algorithm: Algorithm[Any, Any] | Callable[[], Algorithm[Any, Any]],
    *,
    models: Mapping[str, Model] | None = None,
    local: Local | None = None,
) -> dict[str, str]:
    """Hold an algorithm to every promise in `CHECKS`; return the checks that do not apply to it, and why.

    `algorithm`: an instance, or a function without arguments that makes one. `models`: networks by name that take 12
    features to 3 logits. `local`: the local training (default: 2 epochs in batches of 4, SGD with momentum).

    Raises:
        AssertionError: a promise is broken; the message says which and how.
    """
    subject, skipped = Subject.of(algorithm, models, local), {}
    for name, test in CHECKS.items():
        try:
            why = test(subject)
        except Exception as error:
            said = error if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(f"{subject.name} does not pass {name!r} ({test.__doc__}): {said}") from error
        if why is not None:
            skipped[name] = why
    return skipped
