"""Running a step over batches: one client in a loop, or a stack of clients in lock-step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core import tree
from fedloom.core.batches import Batch, Batches, at_batch
from fedloom.core.execution import current
from fedloom.core.random import fold_in
from fedloom.core.steps import Step, tracing, vmap_trees
from fedloom.core.types import replace


def run_one(step: Step, carry: Any, batches: Batches, context: Any) -> Any:
    run, memory = current(), _memory_format(batches)
    work, spec = step.start(tree.map_tree(functools.partial(_own, memory=memory), carry), 0)
    count, losses = int(batches.num_steps), []
    widths = batches.mask.sum(1).tolist()
    rows = batches.examples[batches.order] if count else batches.order
    keys = fold_in(batches.key, torch.arange(count, device=batches.key.device))
    for s in range(count):
        run.step = s
        n = widths[s]
        x = batches.x[rows[s, :n]]
        batch = _batch(
            batches, x, rows[s, :n], batches.order[s, :n], batches.mask[s, :n], keys[s], full=True, memory=memory
        )
        value = step.advance(work, spec, batch, context, None)
        if value is not None:
            losses.append(value)
    run.step = None
    out = step.finish(work, spec)
    if memory is not None:
        # laid out as a state from a file is: kernels give other last bits for other strides, a resumed run would too.
        # (Not contiguous(): it leaves the strides of a single channel as they are.)
        out = tree.map_tree(lambda t: t.clone(memory_format=torch.contiguous_format), out)
    if losses:
        run.losses.append(torch.stack(losses))
        run.steps.append([count])
        if run.watching and batches.private:
            run.trained = 0, tree.map_tree(torch.clone, out)
    return out


def _batch(
    batches: Batches, x: Tensor, rows: Tensor, at: Tensor, mask: Tensor, key: Tensor, full: bool, memory: Any = None
) -> Batch:
    """One client's batch from its stored rows."""
    if batches.prepare is not None:
        x = batches.prepare(x, batches.dtype)
    if batches.augment is not None:
        x = batches.augment(x, key)
    if memory is not None:
        x = x.contiguous(memory_format=memory)
    notes = {name: table[at] for name, table in batches.notes.items()}
    for name, lazy in batches.lazy.items():
        with torch.no_grad():
            notes[name] = lazy.fn(*lazy.context, x).detach()
    return Batch(x=x, y=batches.y[rows], mask=mask, key=key, notes=notes, full=full)


def run_stack(step: Step, K: int, values: Any, axes: Any) -> Any:
    """K clients in lock-step. `values`: (carry, batches, context), stacked where `axes` has 0, shared where None."""
    run = current()
    (carry, batches, context), (carry_axes, batches_axes, context_axes) = values, axes
    counts: list[int] = batches.num_steps.expand(K).tolist()
    ranks = sorted(range(K), key=lambda k: -counts[k])  # stable: equal clients keep their order
    is_sorted = ranks == list(range(K))
    device = batches.order.device
    perm = torch.tensor(ranks, device=device)

    def arrange(t: Tensor, axis: int | None) -> Tensor:
        return t if axis is None or is_sorted else t.index_select(0, perm)

    def own(t: Tensor, axis: int | None) -> Tensor:
        whole = t.expand(K, *t.shape) if axis is None else t
        if axis is None or is_sorted:  # contiguous: fused kernels run over the memory of the first clients
            return whole.clone(memory_format=torch.contiguous_format)
        return t.index_select(0, perm)

    carry = _map2(own, carry, carry_axes)
    batches, context = _map2(arrange, batches, batches_axes), _map2(arrange, context, context_axes)
    spread = {f: getattr(batches, f).expand(K, *getattr(batches, f).shape) for f in ("order", "mask", "examples")
              if getattr(batches_axes, f) is None}  # fmt: skip
    batches = replace(batches, **spread)
    work, spec = step.start(carry, 1)
    S, B = batches.order.shape[1:]
    rows = batches.examples.gather(1, batches.order.reshape(K, S * B)).reshape(K, S, B)
    real = batches.mask.sum(2).cpu()
    counts = sorted(counts, reverse=True)
    going = torch.tensor(counts)[:, None] > torch.arange(S)
    active, full = going.sum(0).tolist(), ((real == B) | ~going).all(0).tolist()
    losses = []
    lock = _Lockstep(step, spec, rows, batches, batches_axes, context, context_axes)
    for s in range(counts[0]):
        run.step = s
        value = lock.advance(work, s, active[s], full[s])
        if value is not None:
            losses.append(torch.nn.functional.pad(value[: active[s]], (0, K - active[s]), value=float("nan")))
    run.step = None
    back = None if is_sorted else torch.argsort(perm)
    if losses:
        seen = torch.stack(losses, 1)
        run.losses.append(seen if back is None else seen[back])
        run.steps.append([counts[i] for i in (range(K) if back is None else back.tolist())])
    out = step.finish(work, spec)
    out = out if back is None else tree.map_tree(lambda t: t.index_select(0, back), out)
    if losses and run.watching and batches.private:
        run.trained = 1, tree.map_tree(torch.clone, out)
    return out


class _Lockstep:
    """The step of a stack as one function of flat tensors, so that it can be traced once and compiled."""

    def __init__(
        self, step: Step, spec: Any, rows: Tensor, batches: Batches, batches_axes: Batches, context: Any, axes: Any
    ) -> None:
        run = current()
        self.step, self.spec, self.batches, self.run = step, spec, batches, run
        self.extra, self.extra_spec = tree.flatten((batches.notes, batches.lazy, context))
        flat_axes = tree.leaves((batches_axes.notes, batches_axes.lazy, axes))
        self.extra_axes = flat_axes
        steps = torch.arange(batches.order.shape[1], device=batches.key.device)
        keys = fold_in(batches.key[..., None], steps)  # [K, S], or [S] where shared
        self.by_step = [t.unbind(1) for t in (rows, batches.order, batches.mask)] + [keys.unbind(-1)]
        self.compilation = run.compilation if step.identity is not None else "none"
        what = (step.identity, self.extra_spec, tuple(flat_axes), batches_axes.key is None)
        self.static = (*what, batches.prepare, batches.augment, batches.dtype, run.bf16)
        self.programs: dict[Any, Callable[..., Any]] = {}  # of this fold, found without hashing what they depend on

    def advance(self, work: Sequence[Tensor], s: int, active: int, full: bool) -> Tensor | None:
        K = len(self.by_step[0][0])
        k = active if self.compilation == "none" else _rounded(active, K)

        def first(t: Tensor) -> Tensor:
            return t if k == K else t[:k]

        args = [
            *map(first, work),
            *(first(series[s]) if series[s].ndim else series[s] for series in self.by_step),
            self.batches.x,
            self.batches.y,
            *(t if a is None else first(t) for t, a in zip(self.extra, self.extra_axes, strict=True)),
        ]
        partial = k > active
        if partial:
            args.append(torch.arange(k, device=args[0].device) < active)
        if self.compilation == "none":
            return self._compute(len(work), full, partial, args)
        program = self.programs.get((k, full, partial))
        if program is None:
            shapes = tuple((a.shape, a.dtype, a.device) for a in args)
            name = (self.compilation, self.static, len(work), full, partial, shapes)
            if name not in self.run.programs:
                self.run.programs[name] = self._trace(len(work), full, partial, args)
            program = self.programs[k, full, partial] = self.run.programs[name]
        return program(*args)  # type: ignore[no-any-return]

    def _compute(self, num_work: int, full: bool, partial: bool, args: Sequence[Tensor]) -> Tensor | None:
        work, (rows, at, mask, key, x, y) = args[:num_work], args[num_work : num_work + 6]
        extra = args[num_work + 6 :]
        if partial:
            extra, going = extra[:-1], extra[-1]
            before = [w.clone() for w in work]
        notes, lazy, context = tree.unflatten(list(extra), self.extra_spec)
        notes_axes, lazy_axes, context_axes = tree.unflatten(list(self.extra_axes), self.extra_spec)
        b = self.batches
        inputs = x.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *x.shape[1:])
        if b.prepare is not None:
            inputs = b.prepare(inputs, b.dtype)
        key_axis = None if key.ndim == 0 else 0
        if b.augment is not None:
            inputs = vmap(b.augment, in_dims=(0, key_axis))(inputs, key)
        labels = y.index_select(0, rows.reshape(-1)).reshape(rows.shape)
        told = {n: (t[at] if notes_axes[n] is None else _take_rows(t, at)) for n, t in notes.items()}
        for n, teacher in lazy.items():

            def tell(c: Any, x: Tensor, m: Tensor, fn: Callable[..., Any] = teacher.fn) -> Any:
                return at_batch(x, None if full else m, fn, *c, x)

            with torch.no_grad():
                told[n] = vmap_trees(tell, (lazy_axes[n].context, 0, 0))(teacher.context, inputs, mask)
        batch = Batch(x=inputs, y=labels, mask=mask, key=key, notes=told, full=full)
        dims: Any = Batch(x=0, y=0, mask=0, key=key_axis, notes=dict.fromkeys(told, 0), full=full)  # type: ignore[arg-type]
        value = self.step.advance(work, self.spec, batch, context, (dims, context_axes))
        if partial:
            for w, old in zip(work, before, strict=True):
                w.copy_(torch.where(going.view(-1, *[1] * (w.ndim - 1)), w, old))
        return value

    def _trace(self, num_work: int, full: bool, partial: bool, args: Sequence[Tensor]) -> Callable[..., Any]:
        from torch.fx.experimental.proxy_tensor import make_fx

        token = tracing.set(True)
        try:
            copies = [a.clone() for a in args[:num_work]]  # tracing computes: on copies, so that nothing moves twice
            graph = make_fx(lambda *a: self._compute(num_work, full, partial, a))(*copies, *args[num_work:])
        finally:
            tracing.reset(token)
        if self.compilation == "trace":
            return graph
        return torch.compile(graph.forward, fullgraph=True, dynamic=False)


def _take_rows(table: Tensor, at: Tensor) -> Tensor:
    """table [K, n, ...], at [K, B] -> [K, B, ...]"""
    return table[torch.arange(table.shape[0], device=at.device)[:, None], at]


def _rounded(active: int, K: int) -> int:
    """1, 2, 4, 8, ... or K: the smallest that holds the active clients, so that few graphs exist."""
    return min(1 << (active - 1).bit_length(), K)


def _map2(fn: Callable[[Tensor, int | None], Tensor], values: Any, axes: Any) -> Any:
    flat, spec = tree.flatten(values)
    return tree.unflatten([fn(v, a) for v, a in zip(flat, tree.leaves(axes), strict=True)], spec)


def _memory_format(batches: Batches) -> torch.memory_format | None:
    """channels_last for images on CPU: convolutions reach 96 % of the matrix peak there, 83 % in NCHW."""
    return torch.channels_last if batches.x.ndim == 4 and batches.x.device.type == "cpu" else None


def _own(t: Tensor, memory: torch.memory_format | None) -> Tensor:
    return t.clone(memory_format=memory) if memory is not None and t.ndim == 4 else t.clone()
