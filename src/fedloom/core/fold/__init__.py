"""The seam between what an algorithm says and how it is computed.

An algorithm folds a step over its batches. Called for one client, that is a loop. Called inside the stack's `vmap`, the
one `autograd.Function` below receives the K stacks themselves: it sorts clients by number of steps, advances them in
lock-step, in place, lets those that have finished drop off the end, and traces or compiles the lock-step on request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.batch import Schedule
from fedloom.core.errors import StackingError
from fedloom.core.fold.execution import current
from fedloom.core.fold.lockstep import run_one, run_stack
from fedloom.core.fold.purity import refuse_captured
from fedloom.core.fold.steps import Descent, Plain, Step
from fedloom.core.optimiser import Optimiser

C = TypeVar("C")


def fold(step: Callable[..., C], carry: C, batches: Schedule, *context: Any) -> C:
    """Fold a step over batches: `carry = step(carry, batch, *context)`, batch after batch.

    Nothing differentiates through a fold.

    Args:
        step: pure; every tensor that it needs is an argument.
        carry: pytree of tensors, which keeps its structure, shapes and dtypes.
        batches: such as `client.train`.
        *context: pytrees of tensors that stay the same.

    Returns:
        The carry after the last batch.
    """
    return _fold(Plain(step), carry, batches, context)


def minimise(
    loss: Callable[..., Any],
    carry: C,
    batches: Schedule,
    optimiser: Optimiser,
    *context: Any,
    lr: Tensor,
    correct: Callable[..., Any] | None = None,
) -> C:
    """Take one optimiser step per batch on `loss(carry, batch, *context)`, from a fresh optimiser state.

    All floating leaves of `carry` are trained, except the buffers of `Weights`. One that the loss does not use has no
    gradient and stays, as in `torch.optim`: neither weight decay nor momentum moves it.

    Args:
        loss: returns a scalar, a `BatchLoss`, or (scalar, carry) where the carry's buffers have moved (`Model.train`
            gives them).
        carry: pytree of tensors, such as `Weights`, from which training starts.
        batches: such as `client.train`.
        optimiser: such as `fl.SGD(lr=0.01)`.
        *context: pytrees of tensors that the loss needs.
        lr: learning rate, [] tensor (`client.lr`).
        correct: `correct(gradient, *context)` changes the gradient before weight decay and momentum see it. A gradient
            looks like the carry with each `Weights` replaced by its `params`, with zeros where there is none; where
            these change, there is one.

    Returns:
        The trained carry.

    Raises:
        StackingError: clients keep their optimisers, which go on in `Algorithm.train` alone.
    """
    if current().optimisers is not None and batches.private:
        raise StackingError(
            "a client keeps the optimiser of `train` (local.keep_optimiser), and minimise begins with a new one: call "
            "self.train(client, weights, loss=...), or leave keep_optimiser out"
        )
    return _fold(Descent(loss, optimiser, correct), carry, batches, (lr, *context))


def minimise_from(
    loss: Callable[..., Any], carry: C, moments: Sequence[Tensor], batches: Schedule, optimiser: Optimiser,
    *context: Any, lr: Tensor, correct: Callable[..., Any] | None = None,
) -> tuple[C, tuple[Tensor, ...]]:  # fmt: skip
    """Train as `minimise`, from a given optimiser state.

    For a server that continues where its last round ended.

    Args:
        loss: as of `minimise`.
        carry: pytree of tensors, from which training starts.
        moments: optimiser state; at first `optimiser.init(...)` of what is trained.
        batches: one after the other.
        optimiser: the one that made `moments`.
        *context: pytrees of tensors that the loss needs.
        lr: learning rate, [] tensor.
        correct: as of `minimise`.

    Returns:
        The trained carry and the new optimiser state.
    """
    return _fold(Descent(loss, optimiser, correct, goes_on=True), (carry, tuple(moments)), batches, (lr, *context))


def _fold(step: Step, carry: C, batches: Schedule, context: tuple[Any, ...]) -> C:
    if batches.private and (rule := current().gradients) is not None:
        step, context = rule.instead(step, batches, context)
    for fn in (*step.callables, *(teacher.fn for teacher in batches.lazy.values())):
        refuse_captured(fn)
    flat, spec = tree.flatten((carry, batches, context))
    for leaf in flat:
        if not isinstance(leaf, Tensor):
            raise StackingError(
                f"carry, batches and context of a fold must be tensors, got {type(leaf).__name__} {leaf!r}"
            )
    carry_spec = tree.flatten(carry)[1]
    return tree.unflatten(list(_Fold.apply(step, spec, *flat)), carry_spec)  # type: ignore[no-any-return,no-untyped-call]


class _Fold(torch.autograd.Function):
    """One client: a loop. Under `vmap`: the stack."""

    @staticmethod
    def forward(step: Step, spec: Any, *flat: Tensor) -> tuple[Tensor, ...]:
        carry, batches, context = tree.unflatten([t.detach() for t in flat], spec)
        return tuple(tree.leaves(run_one(step, carry, batches, context)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise StackingError(
            "nothing differentiates through fold or minimise: write the inner step with torch.func.grad (as MAML does)"
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        return _Fold.backward(ctx)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, step: Step, spec: Any, *flat: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        moved = [t if d is None else t.detach().movedim(d, 0) for t, d in zip(flat, in_dims[2:], strict=True)]
        if any(
            torch._C._functorch.is_batchedtensor(t) for t in moved
        ):  # a vmap of the algorithm's own inside the stack
            raise StackingError("fold and minimise cannot be called inside a vmap of the algorithm's own; loop over it")
        values = tree.unflatten(moved, spec)
        axes = tree.unflatten([None if d is None else 0 for d in in_dims[2:]], spec)
        out = tree.leaves(run_stack(step, info.batch_size, values, axes))
        return tuple(out), (0,) * len(out)
