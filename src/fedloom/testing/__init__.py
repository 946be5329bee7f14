"""Batteries of tests for any algorithm and any task: `check(MyAlgorithm)` and `check_task(MyTask())` in a test.

The first runs an algorithm on a tiny federation of six clients of different sizes, some never selected. It checks what
every algorithm promises: the same results on every engine, no use of another client's data, states that can be saved,
clients that may drop out. The second tries a task's loss and measures on random logits, and trains six clients by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedloom.core.algorithm import Algorithm
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.task import Task, require_task, targets_of
from fedloom.testing.checks import CHECKS
from fedloom.testing.subject import Subject
from fedloom.testing.task_checks import TASK_CHECKS
from fedloom.testing.task_subject import TaskSubject

__all__ = ["CHECKS", "TASK_CHECKS", "Subject", "TaskSubject", "check", "check_task"]


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
    subject = Subject.of(algorithm, models, local)
    return _run(CHECKS, subject, subject.name)


def check_task(task: Task, *, outputs: int | None = None, classes: int | None = None) -> None:
    """Run every check in `TASK_CHECKS` on a task.

    `outputs`: logits of an example; without it 2 of a task of numbers, else 3; give 1 for a task of one logit.
    `classes`: number of classes; without it 2 where there is one logit, else as many as logits.

    Raises:
        SettingError: this is no task.
        AssertionError: a check fails; the message says which and how.
    """
    require_task(task)
    outputs = outputs or (2 if targets_of(task) == "numbers" else 3)
    _run(
        TASK_CHECKS, TaskSubject(task, outputs, classes or max(2, outputs)), f"{type(task).__name__} ({outputs} logits)"
    )


def _run(checks: Mapping[str, Callable[[Any], str | None]], subject: Any, name: str) -> dict[str, str]:
    """Return the checks that do not apply to a subject, with their reasons; raise AssertionError where one fails."""
    skipped = {}
    for check_name, test in checks.items():
        try:
            reason = test(subject)
        except Exception as error:
            message = error if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(f"{name} does not pass {check_name!r} ({test.__doc__}): {message}") from error
        if reason is not None:
            skipped[check_name] = reason
    return skipped
