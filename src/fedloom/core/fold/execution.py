"""Say how folds are executed, and what is seen of them: set by an engine around its calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Compilation = Literal["none", "trace", "compile"]


class Programs(dict[Any, Callable[..., Any] | None]):
    """Steps that were traced or compiled, by all they depend on; None for one that cannot be traced.

    `unused`: which trained tensors have no gradient in a step of a stack, by the same.
    """

    compiler_works = True  # until it has failed once

    def __init__(self) -> None:
        super().__init__()
        self.unused: dict[Any, frozenset[int]] = {}


@dataclass
class Execution:
    """Settings of an engine for its folds, and what they leave behind."""

    compilation: Compilation = "none"
    bf16: bool = False
    planned: int = 0  # steps of all minimises together, had every batch an example
    losses: list[Tensor] = field(default_factory=list)  # of each minimise: [S] or [K, S] (NaN-padded past num_steps)
    steps: list[list[int]] = field(default_factory=list)  # of each minimise: number of steps of each client
    step: int | None = None  # the step being computed
    watching: bool = False  # whether to leave what was trained in `trained`
    trained: tuple[int, Any] | None = None  # (client axes 0 or 1, carry) after the last minimise over private examples
    programs: Programs = field(default_factory=Programs)
    optimisers: Any = None  # those of a client that keeps them: engines/kept_optimisers.py
    gradients: Any = None  # another rule by which clients make gradients of their examples: privacy/by_example.py
    notes: dict[str, Tensor] = field(default_factory=dict)  # what a client has noted: [] float64 by name
    between: Callable[[], None] | None = None  # called before each step; what it raises ends the fold

    def begin(self, step: int) -> None:
        """Note which step comes now, and call `between`, which may end the fold."""
        self.step = step
        if self.between is not None:
            self.between()


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let PyTorch compute on `count` threads while this is open; None: on as many as it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_execution: ContextVar[Execution] = ContextVar("fedloom_execution")


@contextlib.contextmanager
def executing(execution: Execution) -> Iterator[Execution]:
    """Run folds under these settings; losses seen are left in `execution`."""
    token = _execution.set(execution)
    try:
        yield execution
    finally:
        _execution.reset(token)


def current() -> Execution:
    """Return the settings in force; the defaults outside an engine."""
    return _execution.get(Execution())
