"""One mini-batch, and which mini-batches a round makes of the examples of one client."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedloom.core.random import fold_in
from fedloom.core.types import replace, state, static

# (inputs, mask) of the batch at hand; None where it has no padding
padded_batch: ContextVar[tuple[Tensor, Tensor] | None] = ContextVar("fedloom_padded_batch", default=None)


class Prepare(Protocol):
    """Function from stored examples to network inputs (static and hashable): `fedloom.data.Normalise`."""

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor: ...


class Padded(Protocol):
    """Stored sequences whose padding can be cut off (static and hashable): `fedloom.data.Tokens`, `Inputs`."""

    def places(self, x: Tensor) -> int: ...
    def ends(self, x: Tensor) -> Tensor: ...
    def shortened(self, x: Tensor, length: int) -> Tensor: ...


Notes = dict[str, Tensor]  # what frozen models say, by name


@state
class Batch:
    """One mini-batch. Rows where `mask` is False are padding: copies of the client's own first example.

    Annotations are read as attributes: after `batches.annotate("teacher", ...)` a loss reads `batch.teacher`.
    """

    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    mask: Tensor  # [B] bool
    key: Tensor  # [] int64, this client's randomness for this batch
    notes: Notes = field(default_factory=dict)  # name -> [B, ...]
    # [] float64, in [0, 1): how much of this training lies before this batch; 0 where a model is evaluated
    progress: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    full: bool = static(default=False)  # no padding anywhere in the stack: `mean` need not mask

    def mean(self, per_example: Tensor) -> Tensor:
        """Return the mean over the real rows, [].

        Args:
            per_example: a number for each row, [B].
        """
        if self.full:
            return per_example.mean()
        real = self.mask.to(per_example.dtype)
        return torch.where(self.mask, per_example, 0.0).sum() / real.sum().clamp(min=1)

    def __getattr__(self, name: str) -> Tensor:
        notes = self.__dict__.get("notes", {})
        if name in notes:
            return notes[name]  # type: ignore[no-any-return]
        raise AttributeError(
            f"the batch has no annotation {name!r}, only {sorted(notes)}: batches.annotate({name!r}, ...)"
        )


class _Lent(Batch):
    """A batch whose tensors are each copied when they are first read."""

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("_given")
        if given is None or name not in _TENSORS:
            if given is not None:
                self.notes  # noqa: B018 : copied, before one of them is looked up
            return super().__getattr__(name)
        if name == "x":
            own: Any = self._inputs()
        elif name == "notes":
            own = {note: table.clone() for note, table in given.notes.items()}
        else:
            own = getattr(given, name).clone()
        self.__dict__[name] = own
        return own


_TENSORS = frozenset(Batch.__annotations__) - {"full"}


def lend(batch: Batch, inputs: Callable[[], Tensor] | None = None) -> Batch:
    """Return the same batch for code that may write on what it reads, such as a task's; the batch does not change.

    Inputs that nobody reads are not copied; most losses do not read them. `inputs` makes them anew; None: a copy of
    batch.x.
    """
    lent = object.__new__(_Lent)
    lent.__dict__.update(_given=batch, full=batch.full, _inputs=inputs or batch.x.clone)
    return lent


def probe(x: Tensor, y: Tensor | None = None, notes: Notes | None = None) -> Batch:
    """Return a batch of rows that are all real, with key 0: to evaluate, or to try a network in training mode.

    `y`: targets [B, ...]; None: label 1 each.
    """
    real = torch.ones(len(x), dtype=torch.bool, device=x.device)
    labels, key = real.long() if y is None else y, real.new_zeros((), dtype=torch.int64)
    return Batch(x=x, y=labels, mask=real, key=key, notes=notes or {}, full=True)


def outside_training(batch: Batch) -> Batch:
    """Return the same batch for an evaluation, whose passes are no training: its `progress` is 0."""
    return replace(batch, progress=torch.zeros_like(batch.progress))


def piece_of(batch: Batch, start: int, end: int, number: int) -> Batch:
    """Return some rows of a batch, as the piece of this number, which draws by a key of its own."""
    rows = slice(start, end)
    notes = {name: table[rows] for name, table in batch.notes.items()}
    key = fold_in(batch.key, number)
    return replace(batch, x=batch.x[rows], y=batch.y[rows], mask=batch.mask[rows], key=key, notes=notes)


@state
class Lazy:
    """An annotation computed batch by batch."""

    context: Any
    fn: Callable[..., Tensor] = static()


@state
class Schedule:
    """The examples of one client, and the batches in which a round visits them."""

    x: Tensor  # [N, ...] the stored arrays that hold this client's rows (in a simulation: everyone's)
    y: Tensor  # [N]
    examples: Tensor  # [n] int64: which rows are mine
    order: Tensor  # [S, B] int64: positions in `examples`
    mask: Tensor  # [S, B] bool
    num_steps: Tensor  # [] int64: steps that hold a real row; the others come last
    num_examples: Tensor  # [] int64
    key: Tensor  # [] int64
    notes: Notes = field(default_factory=dict)  # name -> [n, ...]
    lazy: dict[str, Lazy] = field(default_factory=dict)
    prepare: Prepare | None = static(default=None)
    augment: Callable[[Tensor, Tensor], Tensor] | None = static(default=None)  # (x [B, ...], key []) -> [B, ...]
    dtype: torch.dtype = static(default=torch.float32)
    cut: Padded | None = static(default=None)  # where a batch may be cut to about its longest sequence
    private: bool = static(default=False)  # the client's own training examples: to learn from them is local training


def padded(n: int) -> int:
    """Return the smallest power of two that holds n: batches get few different widths, so that few graphs exist."""
    return 1 << (max(n, 1) - 1).bit_length()


def cut_length(x: Tensor, how: Padded) -> int:
    """Return to how many places the sequences of stored examples are cut: about the longest of them."""
    return cut_to(max(1, int(how.ends(x).max())), how.places(x))


def of_places(y: Tensor) -> bool:
    """Return whether targets are of each place of a sequence, [N, T], and not of the example."""
    return y.ndim > 1 and not y.is_floating_point()


def cut_to(longest: int, places: int) -> int:
    """Return `longest`, rounded up to 8, 12, 16, 24, 32, 48, ..., so that few graphs exist; at most `places`."""
    whole = max(8, padded(longest))
    return min(places, whole * 3 // 4 if whole > 8 and longest <= whole * 3 // 4 else whole)


def at_batch(x: Tensor, mask: Tensor | None, fn: Callable[..., Any], *args: Any) -> Any:
    """Call fn(*args); a model that normalises by the batch knows the rows of padding in `x` (mask None: none)."""
    token = padded_batch.set(None if mask is None else (x, mask))
    try:
        return fn(*args)
    finally:
        padded_batch.reset(token)
