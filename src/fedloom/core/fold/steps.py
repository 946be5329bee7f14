"""Do with one batch what a fold does: a step as given, or a gradient step; in place, on one client or on a stack."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedloom.core import tree
from fedloom.core.batch import Batch, Schedule, at_batch, piece_of
from fedloom.core.errors import StackingError
from fedloom.core.fold.execution import Compilation, current
from fedloom.core.fold.purity import identity
from fedloom.core.optimiser import SGD, Optimiser
from fedloom.core.types import BatchLoss, Weights

tracing: ContextVar[Compilation] = ContextVar("fedloom_tracing", default="none")  # inside make_fx: what for


class _Step:
    """Base of steps: what each fold asks of one."""

    functional = False  # whether gradients of one client are found as those of a stack: what has none is found before

    def batches(self, batches: Schedule) -> Schedule:
        """Return the batches that are gone through, before the first step."""
        return batches

    def before(self, work: Sequence[Tensor], spec: Any, key: Tensor) -> None:
        """Do what belongs to a step and is in no graph of it. `key`: of the batch, [], of a stack [K]."""


class Plain(_Step):
    """A step as it was given."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.step = step
        self.callables: tuple[Callable[..., Any], ...] = (step,)  # what of it others wrote
        self.identity = identity((type(self), step))

    def start(self, carry: Any, lead: int) -> tuple[list[Tensor], Any]:
        return tree.flatten(carry)

    def finish(self, work: list[Tensor], spec: Any) -> Any:
        return tree.unflatten(work, spec)

    def advance(
        self, work: Sequence[Tensor], spec: Any, batch: Batch, context: Any, dims: Any, unused: frozenset[int]
    ) -> Tensor | None:
        """Advance `work` in place; `dims` None for one client, else the client axes of (batch, context)."""

        def one(flat: Sequence[Tensor], batch: Batch, context: Any) -> list[Tensor]:
            mask = None if batch.full else batch.mask
            moved = tree.flatten(at_batch(batch.x, mask, self.step, tree.unflatten(list(flat), spec), batch, *context))
            _same(spec, moved[1], work if dims is None else flat, moved[0])
            return moved[0]

        with torch.no_grad():
            new = one(work, batch, context) if dims is None else vmap_trees(one, (0, *dims))(work, batch, context)
            for old, value in zip(work, new, strict=True):
                old.copy_(value)
        return None


class Descent(_Step):
    """A gradient step of an optimiser on a loss."""

    def __init__(
        self,
        loss: Callable[..., Any],
        optimiser: Optimiser,
        correct: Callable[..., Any] | None,
        goes_on: bool = False,  # the carry is (carry, optimiser state)
    ) -> None:
        self.loss, self.optimiser, self.correct, self.goes_on = loss, optimiser, correct, goes_on
        self.callables = (loss,) if correct is None else (loss, correct)
        self.identity = identity((type(self), loss, optimiser, correct, goes_on))

    def start(self, carry: Any, lead: int) -> tuple[list[Tensor], Any]:
        carry, given = carry if self.goes_on else (carry, None)
        trained, rest, rebuild = _split(carry)
        if not trained:
            raise StackingError("minimise needs a carry with floating-point leaves to train, it has none")
        moments = self.optimiser.init(trained, lead) if given is None else given
        return [*trained, *rest, *moments], (len(trained), len(rest), rebuild)

    def finish(self, work: list[Tensor], spec: Any) -> Any:
        p, r, rebuild = spec
        carry = rebuild(work[:p], work[p : p + r])
        return (carry, tuple(work[p + r :])) if self.goes_on else carry

    def advance(
        self, work: Sequence[Tensor], spec: Any, batch: Batch, context: Any, dims: Any, unused: frozenset[int]
    ) -> Tensor | None:
        """Advance `work` in place, as `Plain.advance`.

        `unused`: the trained tensors of a stack that have no gradient, of `find_unused`. They stay, as in `torch.optim`
        (neither weight decay nor momentum moves them), unless `correct` gives them a gradient. Of one client they are
        found in every step.
        """
        p, r, rebuild = spec
        trained, rest, moments = work[:p], work[p : p + r], work[p + r :]
        lr, context, lead = context[0], context[1:], 0 if dims is None else 1
        grads: Sequence[Tensor | None]

        def once(trained: Sequence[Tensor], rest: Sequence[Tensor], batch: Batch, context: Any) -> Any:
            objective = functools.partial(self._objective, rebuild)
            grads, (value, moved) = grad_and_value(objective, has_aux=True)(list(trained), rest, batch, context)
            return grads, value.detach(), [m.detach() for m in moved]

        def gradient(trained: Sequence[Tensor], rest: Sequence[Tensor], batch: Batch, context: Any) -> Any:
            grads, value, moved = self._in_pieces(once, trained, rest, batch, context)
            if self.correct is not None:
                grads = self._corrected(grads, rebuild, rest, context)  # type: ignore[arg-type]  # all are tensors here
            return list(grads), value, moved

        if dims is None and not self.functional:
            grads, value, moved = self._gradient(trained, rest, rebuild, batch, context)
            unused = frozenset(i for i, g in enumerate(grads) if g is None)
            if self.correct is not None:
                whole = [torch.zeros_like(t) if g is None else g for t, g in zip(trained, grads, strict=True)]
                grads = self._corrected(whole, rebuild, rest, context)
        else:
            stacked = gradient if dims is None else vmap_trees(gradient, (0, 0, dims[0], dims[1][1:]))
            grads, value, moved = stacked(list(trained), list(rest), batch, context)
        moves = {}
        if self.correct is not None:
            moves = {i: _nonzero(g, lead) for i, g in enumerate(grads) if i in unused and g is not None}
        elif unused:
            grads = [None if i in unused else g for i, g in enumerate(grads)]
        with torch.no_grad():
            for old, new in zip(rest, moved, strict=True):
                old.copy_(new)
            if _fusable(self.optimiser, trained, lr) and not moves:
                rate = float(lr) if tracing.get() == "none" else lr  # a number would stay in the trace
                self.optimiser.fused_step_(trained, grads, moments, rate)  # type: ignore[attr-defined]
            else:
                self.optimiser.step_(trained, grads, moments, lr, lead, moves)
        return value

    def find_unused(self, work: Sequence[Tensor], spec: Any, batch: Batch, context: Any) -> frozenset[int]:
        """Return which of one client's trained tensors have no gradient: the loss does not use them.

        Under `vmap` they have a gradient of zeros, as has what the loss multiplies by 0.
        """
        p, r, rebuild = spec
        grads, _, _ = self._gradient(work[:p], work[p : p + r], rebuild, batch, context[1:])
        return frozenset(i for i, g in enumerate(grads) if g is None)

    def _gradient(
        self, trained: Sequence[Tensor], rest: Sequence[Tensor], rebuild: Any, batch: Batch, context: Any
    ) -> tuple[Sequence[Tensor | None], Tensor, list[Tensor]]:
        """Return one client's gradient, None where there is none, the loss and what has moved."""
        leaves = [t.detach().requires_grad_() for t in trained]

        def once(trained: Sequence[Tensor], rest: Sequence[Tensor], batch: Batch, context: Any) -> Any:
            with torch.enable_grad():
                value, moved = self._objective(rebuild, trained, rest, batch, context)
                grads = torch.autograd.grad(value, trained, allow_unused=True)
            return grads, value.detach(), [m.detach() for m in moved]

        return self._in_pieces(once, leaves, rest, batch, context)

    def _in_pieces(
        self, once: Callable[..., Any], trained: Sequence[Tensor], rest: Sequence[Tensor], batch: Batch, context: Any
    ) -> tuple[Sequence[Tensor | None], Tensor, list[Tensor]]:
        """Return what `once` returns of a batch, computed on at most `micro_batch` rows at a time.

        Of 10 rows in pieces of 4, the gradient is 0.4 g(rows 0 to 3) + 0.4 g(4 to 7) + 0.2 g(8, 9); rows of padding do
        not count. What moves untrained, such as statistics of BatchNorm, moves piece by piece.
        """
        size = self.optimiser.micro_batch
        if size is None or size >= batch.mask.shape[0]:
            return once(trained, rest, batch, context)  # type: ignore[no-any-return]
        real = batch.mask.sum().clamp(min=1)
        total: list[Tensor | None] = [None] * len(trained)
        loss = torch.zeros((), dtype=torch.float64, device=batch.mask.device)
        for number, start in enumerate(range(0, batch.mask.shape[0], size)):
            piece = piece_of(batch, start, start + size, number)
            grads, value, rest = once(trained, rest, piece, context)
            share = piece.mask.sum().double() / real
            loss = loss + share * value
            parts = (None if g is None else share.to(g.dtype) * g for g in grads)
            total = [
                old if new is None else new if old is None else old + new for old, new in zip(total, parts, strict=True)
            ]
        return total, loss.to(value.dtype), list(rest)

    def _corrected(self, grads: Sequence[Tensor], rebuild: Any, rest: Sequence[Tensor], context: Any) -> list[Tensor]:
        assert self.correct is not None
        return tree.leaves(self.correct(_trees(rebuild(grads, rest)), *context))

    def _objective(
        self, rebuild: Any, trained: Sequence[Tensor], rest: Sequence[Tensor], batch: Batch, context: Any
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the loss, [], and what moves untrained."""
        with _autocast(batch.x):
            mask = None if batch.full else batch.mask
            answer = at_batch(batch.x, mask, self.loss, rebuild(trained, rest), batch, *context)
        if isinstance(answer, BatchLoss):
            answer = answer.value, answer.weights
        value, moved = answer if isinstance(answer, tuple) else (answer, None)
        if not isinstance(value, Tensor) or value.ndim != 0:
            shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise StackingError(f"a loss must return one number for a batch, got {shape}; use batch.mean(per_example)")
        return value, (list(rest) if moved is None else _split(moved)[1])


Step = Plain | Descent


def vmap_trees(fn: Callable[..., Any], dims: Any) -> Callable[..., Any]:
    """Return vmap of `fn`, whose first arguments are lists of stacked tensors; `dims` may hold trees."""

    def stacked(*args: Any) -> Any:
        flat, spec = tree.flatten(args)
        axes: list[int | None] = []
        for a, d in zip(args, dims, strict=True):
            axes.extend([d] * len(tree.leaves(a)) if d is None or isinstance(d, int) else tree.leaves(d))
        return vmap(lambda *f: fn(*tree.unflatten(list(f), spec)), in_dims=tuple(axes), randomness="error")(*flat)

    return stacked


def _split(carry: Any) -> tuple[list[Tensor], list[Tensor], Callable[[Sequence[Tensor], Sequence[Tensor]], Any]]:
    """Return the trained leaves, the others, and a function that puts both back together."""
    nodes, spec = tree.flatten(carry, is_leaf=lambda n: isinstance(n, Weights))
    kinds: list[Any] = []
    trained: list[Tensor] = []
    rest: list[Tensor] = []
    for node in nodes:
        if isinstance(node, Weights):
            kinds.append((list(node.params), list(node.buffers)))
            trained.extend(node.params.values())
            rest.extend(node.buffers.values())
        else:
            kinds.append(node.is_floating_point())
            (trained if kinds[-1] else rest).append(node)

    def rebuild(trained: Sequence[Tensor], rest: Sequence[Tensor]) -> Any:
        t, r = iter(trained), iter(rest)
        return tree.unflatten(
            [
                (next(t) if kind else next(r))
                if isinstance(kind, bool)
                else Weights(params={n: next(t) for n in kind[0]}, buffers={n: next(r) for n in kind[1]})
                for kind in kinds
            ],
            spec,
        )

    return trained, rest, rebuild


def _trees(gradient: Any) -> Any:
    """Return a gradient as `correct` sees it: each Weights replaced by its params."""
    nodes, spec = tree.flatten(gradient, is_leaf=lambda n: isinstance(n, Weights))
    return tree.unflatten([n.params if isinstance(n, Weights) else n for n in nodes], spec)


def _nonzero(gradient: Tensor, lead: int) -> Tensor:
    """Return whether a gradient has a number but 0, [] bool, with lead = 1 [K]."""
    return gradient.ne(0).reshape(*gradient.shape[:lead], -1).any(-1)


def _fusable(optimiser: Optimiser, params: Sequence[Tensor], lr: Tensor) -> bool:
    plain = isinstance(optimiser, SGD) and type(optimiser).move_ is SGD.move_ and lr.ndim == 0
    plain = plain and optimiser.clip is None and optimiser.clip_value is None and not optimiser.timed
    return plain and params[0].device.type == "cpu" and tracing.get() != "compile"  # which fuses more than this


@contextlib.contextmanager
def _autocast(x: Tensor) -> Iterator[None]:
    if current().bf16:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            yield
    else:
        yield


def _same(spec: Any, got: Any, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    if spec != got or any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(before, after, strict=True)):
        raise StackingError(
            "a step must return a carry of the structure, shapes and dtypes it was given: "
            f"got {[(list(a.shape), a.dtype) for a in after]}, had {[(list(b.shape), b.dtype) for b in before]}"
        )
