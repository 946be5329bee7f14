"""The examples of one client and the order in which one round visits them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.core.batch import Batch, Lazy, Schedule, padded
from fedloom.core.fold import fold
from fedloom.core.random import normal, uniform
from fedloom.core.types import replace, state

_AT_A_TIME = 200  # examples of a pass over all of them


@state
class Batches(Schedule):
    """Data of one client in one round: `num_steps` batches over `num_examples` examples."""

    @property
    def places(self) -> Tensor:
        """The place of each example among all that this client ever has, [n] int64, the same in every round."""
        stored = torch.arange(self.examples.shape[0], device=self.examples.device)
        return self.notes.get("place", stored)  # a note where examples arrive

    def annotate(self, name: str, fn: Callable[..., Tensor], *context: Any) -> Batches:
        """Return these batches, each with `batch.<name>` = fn(*context, batch.x), [B, ...]; no gradient flows into it.

        It is computed once for every example where that gives the same. It is computed batch by batch where inputs are
        augmented at random, and for a model that normalises by the batch (`fn.by_batch`).

        Args:
            name: under which a loss reads it.
            fn: such as `client.model`.
            *context: pytrees of tensors, such as weights.
        """
        if self.augment is not None or getattr(fn, "by_batch", False):
            return replace(self, lazy={**self.lazy, name: Lazy(fn=fn, context=context)})
        return self.note(name, self.predict(fn, *context))

    def first(self, steps: Tensor) -> Batches:
        """Return the first of these batches.

        Args:
            steps: how many, []; all of them where there are fewer.
        """
        return replace(self, num_steps=torch.minimum(self.num_steps, steps))

    def after(self, steps: Tensor) -> Batches:
        """Return the batches that follow the first of these, as a training of their own.

        Args:
            steps: how many are left out, [].
        """
        turned = (torch.arange(len(self.order), device=self.order.device) + steps) % len(self.order)
        left = (self.num_steps - steps).clamp(min=0)
        return replace(self, order=self.order[turned], mask=self.mask[turned], num_steps=left, key=self.key + steps)

    def only(self, chosen: Tensor) -> Batches:
        """Return the batches of `whole`, but of some examples alone.

        Args:
            chosen: which, [n] bool.
        """
        chosen = chosen & (torch.arange(len(self.examples), device=chosen.device) < self.num_examples)
        first = torch.argsort((~chosen).int(), stable=True)
        notes = {name: table[first] for name, table in self.notes.items()}
        return replace(self, examples=self.examples[first], num_examples=chosen.sum(), notes=notes).whole()

    def block(self, share: float, key: Tensor) -> Batches:
        """Return the batches of `whole`, but of a share of the examples, at least one, that stand beside each other.

        Args:
            share: of the examples, in (0, 1].
            key: by which the first of them is drawn, [] int64.
        """
        count = (self.num_examples * share).long().clamp(min=1)
        begin = (uniform(key, 0, torch.Size()).double() * (self.num_examples - count + 1)).long()
        place = torch.arange(len(self.examples), device=key.device)
        return self.only((place >= begin) & (place < begin + count))

    def whole(self) -> Batches:
        """Return one pass over all examples in stored order, 200 at a time, without augmentation."""
        return self.in_order(min(_AT_A_TIME, padded(self.examples.shape[0])))

    def passes(self, orders: Tensor, key: Tensor) -> Batches:
        """Return these batches several times, as one training.

        With n = 5 examples, batches of 2 in stored order and E = 2, order and mask are [3, 2] before and [6, 2] after.

        Args:
            orders: the order of the examples in each pass, [E, n].
            key: of the randomness of augmentation.
        """
        order = orders[:, self.order].flatten(0, 1)  # row e: the e-th pass
        mask, steps = self.mask.repeat(len(orders), 1), len(orders) * self.num_steps
        return replace(self, order=order, mask=mask, num_steps=steps, key=key)

    def part(self, start: int, stop: int) -> Batches:
        """Return some batches of one client, as if they were all.

        Args:
            start: the first.
            stop: the one after the last.
        """
        order, mask = self.order[start:stop], self.mask[start:stop]
        return replace(self, order=order, mask=mask, num_steps=mask.any(-1).sum(), key=self.key + start)

    def note(self, name: str, table: Tensor) -> Batches:
        """Return these batches, each with `batch.<name>` = the rows of a table that belong to it.

        Args:
            name: under which a loss reads it.
            table: a row for each example, [n, ...].

        Raises:
            ValueError: the table has another number of rows.
        """
        if table.shape[0] != self.examples.shape[0]:
            raise ValueError(
                f"a note needs one row for each of {self.examples.shape[0]} examples, got {table.shape[0]}"
            )
        return replace(self, notes={**self.notes, name: table})

    def predict(self, fn: Callable[..., Tensor], *context: Any) -> Tensor:
        """Return fn(*context, x) for every example, not augmented, [n, ...] in the order of `examples`.

        Args:
            fn: such as `client.model`.
            *context: pytrees of tensors, such as weights.
        """
        n, width = self.examples.shape[0], min(_AT_A_TIME, padded(self.examples.shape[0]))
        # rows that stay apart are not learnt from
        passes, steps = replace(self, notes={}, private=False).in_order(width), -(-n // width)
        like = _row_shape(fn, context, self)
        table = torch.zeros((steps * width, *like.shape), dtype=like.dtype, device=self.examples.device)

        def write(out: Tensor, batch: Batch, *context: Any) -> Tensor:
            return out.index_copy(0, batch.at, fn(*context, batch.x).detach())

        places = torch.arange(n, device=self.examples.device)
        return fold(write, table, passes.note("at", places), *context)[:n]

    def in_order(self, batch_size: int) -> Batches:
        """Return one pass over all examples in stored order, without augmentation.

        Args:
            batch_size: examples in a batch.
        """
        n = self.examples.shape[0]
        steps = -(-n // batch_size)
        flat = torch.arange(steps * batch_size, device=self.examples.device)
        mask = (flat < self.num_examples).reshape(steps, batch_size)
        order = torch.where(flat < n, flat, 0).reshape(steps, batch_size)
        count = torch.div(self.num_examples + batch_size - 1, batch_size, rounding_mode="floor")
        return replace(self, order=order, mask=mask, num_steps=count, lazy={}, augment=None)


def noise(shape: tuple[int, ...], batch_size: int, steps: int, key: int, like: Tensor) -> Batches:
    """Return `steps` batches of standard normal noise, [B, *shape], for a network that makes examples; labels are 0.

    The content of a batch depends on (key, number of the batch) alone. `like`: the noise is on its device, and of its
    dtype.
    """
    zero = torch.zeros((), dtype=torch.int64, device=like.device)
    return Batches(
        x=torch.zeros((1, *shape), dtype=like.dtype, device=like.device),
        y=zero[None],
        examples=zero[None],
        order=zero.expand(steps, batch_size),
        mask=torch.ones((steps, batch_size), dtype=torch.bool, device=like.device),
        num_steps=zero + steps,
        num_examples=zero + 1,
        key=zero + key,
        augment=_to_noise,
        dtype=like.dtype,
    )


def _to_noise(x: Tensor, key: Tensor) -> Tensor:
    return normal(key, 0, x.shape).to(x.dtype)


def plan(
    sizes: npt.NDArray[np.int64],
    batch_size: int,
    keys: Sequence[int] | None,
    *,
    epochs: int = 1,
    steps: int | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return order and mask, [K, S, B] each, of K clients with `sizes` examples.

    An epoch has all examples, with the short batch last. Each epoch is a fresh permutation that depends on the client's
    key and nothing else; without keys, it has the stored order. `steps`: exactly this number of batches for every
    client, over as many epochs as that takes. Padding is False, and last. B is `batch_size`, or less where that already
    holds the largest client.
    """
    sizes = np.asarray(sizes, np.int64)
    batch_size = min(batch_size, padded(int(sizes.max(initial=1))))
    K, per_epoch = len(sizes), -(-sizes // batch_size)
    passes = np.full(K, epochs) if steps is None else -(-steps // np.maximum(per_epoch, 1))
    E, n, P = int(passes.max(initial=1)), int(sizes.max(initial=1)), int(per_epoch.max(initial=1))
    real = (np.arange(n) < sizes[:, None, None]) & (np.arange(E)[:, None] < passes[:, None, None])
    if keys is None:
        ranked = np.broadcast_to(np.arange(n), (K, E, n))
    else:  # sorted by random numbers; what is not there sorts last
        counter = np.arange(E, dtype=np.uint64)[:, None] << np.uint64(32) | np.arange(n, dtype=np.uint64)
        bits = _splitmix(np.array(keys, np.uint64)[:, None, None] + _GOLDEN * (counter + np.uint64(1)))
        ranked = np.argsort(bits if real.all() else np.where(real, bits, np.uint64(2**64 - 1)), axis=-1)
    order, mask = np.zeros((K, E, P * batch_size), np.int64), np.zeros((K, E, P * batch_size), bool)
    order[..., :n], mask[..., :n] = np.where(real, ranked, 0), real
    order, mask = order.reshape(K, E * P, batch_size), mask.reshape(K, E * P, batch_size)
    if (per_epoch < P).any() or (passes < E).any():  # the real steps of a smaller client move together
        first = np.argsort(~mask.any(2), axis=1, kind="stable")[..., None]
        order, mask = np.take_along_axis(order, first, 1), np.take_along_axis(mask, first, 1)
    count = E * P if steps is None else steps
    return np.ascontiguousarray(order[:, :count]), np.ascontiguousarray(mask[:, :count])


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers that mixes well."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _row_shape(fn: Callable[..., Tensor], context: Any, batches: Batches) -> Tensor:
    """Return fn's answer to one example, for its shape and dtype, at the cost of that example."""
    x = batches.x[:1].clone()  # `fn` may write on it
    x = x if batches.prepare is None else batches.prepare(x, batches.dtype)
    with torch.no_grad():
        return fn(*context, x)[0]
