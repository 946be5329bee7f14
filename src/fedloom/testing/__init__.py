"""Battery of tests for any algorithm: `check(MyAlgorithm)` in a test.

It runs the algorithm on a tiny federation of six clients of different sizes, some never selected. It checks what every
algorithm promises: the same results on every engine, no use of another client's data, states that can be saved, clients
that may drop out.
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
    """Run every check in `CHECKS` on an algorithm; return the checks that do not apply, with their reasons.

    `algorithm`: an instance, or a function without arguments that makes one. `models`: networks by name that take 12
    features to 3 logits. `local`: the local training (default: 2 epochs in batches of 4, SGD with momentum).

    Raises:
        AssertionError: a check fails; the message says which and how.
    """
    subject, skipped = Subject.of(algorithm, models, local), {}
    for name, test in CHECKS.items():
        try:
            reason = test(subject)
        except Exception as error:
            message = error if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(f"{subject.name} does not pass {name!r} ({test.__doc__}): {message}") from error
        if reason is not None:
            skipped[name] = reason
    return skipped
