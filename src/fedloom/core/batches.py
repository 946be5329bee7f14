"""The examples of one client and the order in which one round visits them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedloom.core.random import fold_in
from fedloom.core.types import Params, replace, state, static


class Prepare(Protocol):
    """From stored examples to network inputs (static and hashable): `fedloom.data.Normalise`."""

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor: ...


@state
class Batch:
    """One mini-batch. Rows where `mask` is False are padding: copies of the client's own first example.

    Annotations are read as attributes: after `batches.annotate("teacher", ...)` a loss reads `batch.teacher`.
    """

    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    mask: Tensor  # [B] bool
    key: Tensor  # [] int64, this client's randomness for this batch
    notes: Params = field(default_factory=dict)  # name -> [B, ...]
    full: bool = static(default=False)  # no padding anywhere in the stack: `mean` need not mask

    def mean(self, per_example: Tensor) -> Tensor:
        """Mean over the real rows, []. `per_example`: [B]."""
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


@state
class Lazy:
    """An annotation computed batch by batch, because inputs are augmented at random."""

    context: Any
    fn: Callable[..., Tensor] = static()


@state
class Batches:
    """What a client sees of its data in one round: `num_steps` batches over `num_examples` examples."""

    x: Tensor  # [N, ...] the stored arrays that hold this client's rows (in a simulation: everyone's)
    y: Tensor  # [N]
    examples: Tensor  # [n] int64: which rows are mine
    order: Tensor  # [S, B] int64: positions in `examples`
    mask: Tensor  # [S, B] bool
    num_steps: Tensor  # [] int64: steps that hold a real row; the others come last
    num_examples: Tensor  # [] int64
    key: Tensor  # [] int64
    notes: Params = field(default_factory=dict)  # name -> [n, ...]
    lazy: dict[str, Lazy] = field(default_factory=dict)
    prepare: Prepare | None = static(default=None)
    augment: Callable[[Tensor, Tensor], Tensor] | None = static(default=None)  # (x [B, ...], key []) -> [B, ...]
    dtype: torch.dtype = static(default=torch.float32)

    def annotate(self, name: str, fn: Callable[..., Tensor], *context: Any) -> Batches:
        """These batches, each with `batch.<name>` = fn(*context, batch.x), [B, ...]; no gradient flows into it.

        Computed once for every example where inputs are deterministic, else for each batch.
        """
        if self.augment is not None:
            return replace(self, lazy={**self.lazy, name: Lazy(fn=fn, context=context)})
        return self.note(name, self.predict(fn, *context))

    def note(self, name: str, table: Tensor) -> Batches:
        """These batches, each with `batch.<name>` = the rows of `table` [n, ...] that belong to it."""
        if table.shape[0] != self.examples.shape[0]:
            raise ValueError(
                f"a note needs one row for each of {self.examples.shape[0]} examples, got {table.shape[0]}"
            )
        return replace(self, notes={**self.notes, name: table})

    def predict(self, fn: Callable[..., Tensor], *context: Any, batch_size: int = 200) -> Tensor:
        """fn(*context, x) for every example, not augmented, [n, ...] in the order of `examples`."""
        from fedloom.core.fold import fold  # the seam is built on batches

        n, width = self.examples.shape[0], min(batch_size, self.examples.shape[0])
        passes, steps = self.in_order(width), -(-n // width)
        like = _row_shape(fn, context, self)
        table = torch.zeros((steps * width, *like.shape), dtype=like.dtype, device=self.examples.device)

        def write(out: Tensor, batch: Batch, *context: Any) -> Tensor:
            return out.index_copy(0, batch.at, fn(*context, batch.x).detach())

        places = torch.arange(n, device=self.examples.device)
        return fold(write, table, passes.note("at", places), *context)[:n]

    def in_order(self, batch_size: int) -> Batches:
        """One pass over all examples in stored order, without augmentation."""
        n = self.examples.shape[0]
        steps = -(-n // batch_size)
        flat = torch.arange(steps * batch_size, device=self.examples.device)
        mask = (flat < self.num_examples).reshape(steps, batch_size)
        order = torch.where(flat < n, flat, 0).reshape(steps, batch_size)
        count = torch.div(self.num_examples + batch_size - 1, batch_size, rounding_mode="floor")
        return replace(self, order=order, mask=mask, num_steps=count, notes={}, lazy={}, augment=None)


def plan(
    sizes: int, batch_size: int, rng: np.random.Generator | None, *, epochs: int = 1, steps: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Order [S, B] and mask [S, B] of a client with `sizes` examples: each epoch a fresh permutation, short batch last.

    `rng` None keeps the stored order. `steps`: exactly so many batches, over as many epochs as that takes.
    """
    per_epoch = -(-sizes // batch_size)
    if sizes == 0:
        return np.zeros((0, batch_size), np.int64), np.zeros((0, batch_size), bool)
    passes = epochs if steps is None else -(-steps // per_epoch)
    order = np.zeros((passes, per_epoch * batch_size), np.int64)
    stored = np.arange(sizes)
    for e in range(passes):
        order[e, :sizes] = stored if rng is None else rng.permutation(sizes)
    mask = np.zeros_like(order, bool)
    mask[:, :sizes] = True
    total = passes * per_epoch if steps is None else steps
    return order.reshape(-1, batch_size)[:total], mask.reshape(-1, batch_size)[:total]


def batch_key(key: Tensor, step: Tensor | int) -> Tensor:
    """The key of one batch."""
    return fold_in(key, step)


def _row_shape(fn: Callable[..., Tensor], context: Any, batches: Batches) -> Tensor:
    """Shape and dtype of fn's answer to one example, without its cost."""
    x = batches.x[:1]
    x = x if batches.prepare is None else batches.prepare(x, batches.dtype)
    with torch.no_grad():
        return fn(*context, x)[0]
