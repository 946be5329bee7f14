"""Running a step over batches: one client in a loop, or a stack of clients in lock-step."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core import tree
from fedloom.core.batch import Batch, Lazy, Schedule, at_batch, cut_length, of_places
from fedloom.core.errors import EngineWarning, first_line, warn
from fedloom.core.fold.execution import Compilation, current
from fedloom.core.fold.steps import Descent, Plain, Step, tracing, vmap_trees
from fedloom.core.fold.widths import by_width, rounded
from fedloom.core.layout import by_channels, by_pixels
from fedloom.core.random import fold_in
from fedloom.core.types import replace


def run_one(step: Step, carry: Any, batches: Schedule, context: Any) -> Any:
    run, images, batches = current(), _images_on_cpu(batches), step.batches(batches)
    work, spec = step.start(tree.map_tree(by_pixels if images else torch.clone, carry), 0)
    count, losses = int(batches.num_steps), []
    run.planned += len(batches.order) * isinstance(step, Descent)
    rows = batches.examples[batches.order] if count else batches.order
    steps = torch.arange(count, device=batches.key.device)
    series = rows, batches.order, batches.mask, fold_in(batches.key, steps), steps.double() / max(count, 1)
    lock = _Lockstep(step, spec, tree.flatten(carry)[1], series, batches, context, None)
    widths = batches.mask.sum(1).clamp(min=1).tolist()
    for s in range(count):
        run.begin(s)
        value = lock.advance_one(work, s, widths[s])
        if value is not None:
            losses.append(value)
    run.step = None
    out = step.finish(work, spec)
    if images:  # as a state from a file lies: kernels give other last bits for other strides, a resumed run would too
        out = tree.map_tree(by_channels, out)
    if losses:
        run.losses.append(torch.stack(losses))
        run.steps.append([count])
        if run.watching and batches.private:
            run.trained = 0, tree.map_tree(torch.clone, out)
    return out


def run_stack(step: Step, K: int, values: Any, axes: Any) -> Any:
    """Run K clients in lock-step; where batch widths differ much, run some in a narrower lock-step of their own.

    Training stays in one lock-step, since it goes on for many steps of few rows. `values`, `axes`: as `_in_lockstep`.
    """
    parts = by_width(values[1].mask) if isinstance(step, Plain) and axes[1].mask is not None else []
    if not parts:
        return _in_lockstep(step, K, values, axes)
    outs = [_in_lockstep(step, len(part), _narrow(values, axes, part, width), axes) for part, width in parts]
    return tree.take(tree.cat(outs), torch.argsort(torch.cat([part for part, _ in parts])))


def _narrow(values: Any, axes: Any, part: Tensor, width: int) -> tuple[Any, Schedule, Any]:
    """Return the (carry, batches, context) of some clients, with batches of that width."""
    carry, batches, context = _map2(lambda t, axis: t if axis is None else t.index_select(0, part), values, axes)
    return carry, replace(batches, order=batches.order[..., :width], mask=batches.mask[..., :width]), context


def _in_lockstep(step: Step, K: int, values: Any, axes: Any) -> Any:
    """Run K clients in one lock-step and return their carries, stacked.

    `values`: (carry, batches, context), stacked where `axes` has 0, shared where None.

    Three clients with 5, 9 and 6 examples, one epoch in batches of 4: they take 2, 3 and 2 steps, so `order` and `mask`
    are [3, 3, 4], and the clients are arranged as 1, 0, 2. The client with most steps is first, so those that go on are
    always the first rows of each tensor [3, ...] that moves.

        step    examples of 1, 0, 2    active    full
        0       4, 4, 4                3         yes: computed without masks
        1       4, 1, 2                3         no
        2       1, -, -                1         no; rows 1 and 2 were put away when their clients had ended
    """
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
            return by_channels(whole)
        return t.index_select(0, perm)

    carry = _map2(own, carry, carry_axes)
    batches, context = step.batches(_map2(arrange, batches, batches_axes)), _map2(arrange, context, context_axes)
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
    steps = torch.arange(S, device=device)
    keys = fold_in(batches.key[..., None], steps)  # [K, S], or [S] where shared
    done = steps.double() / batches.num_steps[..., None].clamp(min=1)  # the same
    by_client = (rows, batches.order, batches.mask, keys, done)
    series = [t if t.ndim == 1 else t.transpose(0, 1).contiguous() for t in by_client]  # by step: [S, K, B]
    lock = _Lockstep(step, spec, tree.flatten(carry)[1], series, batches, context, (batches_axes, context_axes))
    if lock.compilation != "none":  # a graph with padding serves steps without: a second graph for these would not pay
        full = [all(full[: counts[0]])] * S
    ended = _Ended(work, K)
    for s in range(counts[0]):
        run.begin(s)
        ended.put_away(active[s])
        value = lock.advance(work, s, active[s], full[s])
        if value is not None:
            losses.append(torch.nn.functional.pad(value[: active[s]], (0, K - active[s]), value=float("nan")))
    run.step = None
    work = ended.all()
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


class _Ended:
    """The rows of clients that are done.

    Finished clients inside the padded stack are still computed, and the results discarded, so few graphs exist: K = 5
    with (9, 9, 6, 2, 2) steps has 5, 3 and 2 active clients, and graphs of 5, 4 and 2.
    """

    def __init__(self, work: list[Tensor], K: int) -> None:
        self.work, self.going, self.rows = work, K, list[Tensor]()

    def put_away(self, active: int) -> None:
        """Keep the rows of the clients that are no longer active."""
        if active < self.going:
            self.rows = self.rows or [torch.empty_like(w) for w in self.work]
            for kept, w in zip(self.rows, self.work, strict=True):
                kept[active : self.going] = w[active : self.going]
            self.going = active

    def all(self) -> list[Tensor]:
        """Return the rows of all clients, [K, ...] each."""
        if self.rows:
            self.put_away(0)
        return self.rows or self.work


_Kind = tuple[int, bool, int | None]  # tensors that move, whether no row is padding, places of a sequence


class _Lockstep:
    """The step of one client or of a stack as one function of flat tensors, so that it can be traced and compiled.

    `series`: (rows, order, mask, keys, progress), each with the steps in front, so that those of one step are
    contiguous whatever the longest client of the call is. `axes`: the client axes of (batches, context), None for one.
    `carried`: the structure of the carry; two with tensors of the same shapes may be trained by different code.
    """

    def __init__(
        self,
        step: Step,
        spec: Any,
        carried: Any,
        series: Sequence[Tensor],
        batches: Schedule,
        context: Any,
        axes: Any,
    ) -> None:
        self.step, self.spec, self.batches, self.run, self.axes = step, spec, batches, current(), axes
        self.images = axes is None and _images_on_cpu(batches)
        self.extra, self.extra_spec = tree.flatten((batches.lazy, context))
        if axes is None:
            self.K, self.extra_axes, self.notes_axes = 1, (None,) * len(self.extra), {}
        else:
            self.K = series[0].shape[1]
            self.extra_axes = tuple(tree.leaves((axes[0].lazy, axes[1])))
            self.notes_axes = axes[0].notes
            self.places = torch.arange(self.K, device=series[0].device)
        self.series = [t.unbind(0) for t in series]
        self.compilation: Compilation = self.run.compilation if step.identity is not None else "none"
        if self.compilation == "compile" and not isinstance(step, Descent):
            self.compilation = "trace"  # predictions are few: compiling them costs more than it saves
        kind = None if axes is None else (self.extra_axes, axes[0].key is None, axes[0].num_steps is None)
        what = (step.identity, carried, self.extra_spec, kind, tuple(batches.notes))
        self.static = (self.compilation, *what, batches.prepare, batches.augment, batches.dtype, self.run.bf16)
        beside = batches.notes or batches.lazy or batches.augment  # of the whole sequence, perhaps
        self.cut = None if beside else batches.cut
        self.programs: dict[Any, Callable[..., Any] | None] = {}  # of this fold, found without hashing
        self.unused: dict[int | None, frozenset[int]] = {}  # by places of a sequence

    def advance_one(self, work: Sequence[Tensor], s: int, width: int) -> Tensor | None:
        rows, at, mask, key, done = (series[s] for series in self.series)
        whole = width == len(mask)
        if not whole:  # rows of padding cost nothing
            rows, at, mask = rows[:width], at[:width], mask[:width]
        notes = [table[at] for table in self.batches.notes.values()]
        args = [*work, rows, mask, key, done, self.batches.x, self.batches.y, *notes, *self.extra]
        # short batches come in many widths, one to an epoch: a graph for each would not pay
        return self._run((len(work), True, self._length(rows)), args, trace=whole)

    def advance(self, work: Sequence[Tensor], s: int, active: int, full: bool) -> Tensor | None:
        K = self.K
        k = active if self.compilation == "none" else rounded(active, K)

        def first(t: Tensor) -> Tensor:
            return t if k == K else t[:k]

        rows, at, mask, key, done = (first(series[s]) if series[s].ndim else series[s] for series in self.series)
        notes = [
            t[at] if self.notes_axes[name] is None else first(t)[first(self.places)[:, None], at]
            for name, t in self.batches.notes.items()
        ]
        extra = (t if a is None else first(t) for t, a in zip(self.extra, self.extra_axes, strict=True))
        args = [*map(first, work), rows, mask, key, done, self.batches.x, self.batches.y, *notes, *extra]
        return self._run((len(work), full, self._length(rows)), args)

    def _length(self, rows: Tensor) -> int | None:
        """Return to how many places the sequences of these rows are cut; None: they are whole."""
        return None if self.cut is None else cut_length(self.batches.x[rows], self.cut)

    def _run(self, kind: _Kind, args: Sequence[Tensor], trace: bool = True) -> Tensor | None:
        self.step.before(args[: kind[0]], self.spec, args[kind[0] + 2])
        if (self.axes is not None or self.step.functional) and kind[2] not in self.unused:
            self.unused[kind[2]] = self._find_unused(kind, args)
        if self.compilation == "none" or not trace:
            return self._compute(*kind, args)
        here = (*kind, args[kind[0]].shape)
        if here not in self.programs:
            shapes = tuple((a.shape, a.stride(), a.dtype, a.device) for a in args)
            name, kept = (self.static, kind, shapes), self.run.programs
            if name not in kept:
                kept[name] = self._program(kind, args)
            self.programs[here] = kept[name]
        program = self.programs[here]
        return self._compute(*kind, args) if program is None else program(*args)

    def _find_unused(self, kind: _Kind, args: Sequence[Tensor]) -> frozenset[int]:
        """Return which trained tensors of a stack have no gradient, by one client's; once for all folds of a kind.

        It is the same for all clients and steps: what a loss uses depends on no number, or `vmap` would refuse it.
        """
        step, kept = self.step, self.run.programs.unused
        if not isinstance(step, Descent):
            return frozenset()
        name = None if step.identity is None else (self.static, kind[0], kind[2], tuple(a.shape for a in args))
        if (known := kept.get(name)) is not None:
            return known
        batch, context, dims = self._read(*kind, args)
        work = args[: kind[0]] if dims is None else [t[0] for t in args[: kind[0]]]
        one = _map2(lambda t, axis: t if axis is None else t[0], (batch, context), dims) if dims else (batch, context)
        found = step.find_unused(work, self.spec, *one)
        if name is not None:
            kept[name] = found
        return found

    def _compute(self, num_work: int, full: bool, length: int | None, args: Sequence[Tensor]) -> Tensor | None:
        read, unused = self._read(num_work, full, length, args), self.unused.get(length, frozenset())
        return self.step.advance(args[:num_work], self.spec, *read, unused)

    def _read(self, num_work: int, full: bool, length: int | None, args: Sequence[Tensor]) -> tuple[Batch, Any, Any]:
        """Return the batch and the context of these arguments, and the client axes of both; None for one client."""
        b, (rows, mask, key, done, x, y) = self.batches, args[num_work : num_work + 6]
        extra = args[num_work + 6 :]
        notes = dict(zip(b.notes, extra, strict=False))
        lazy, context = tree.unflatten(list(extra[len(notes) :]), self.extra_spec)
        x = x.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *x.shape[1:])
        y = y.index_select(0, rows.reshape(-1)).reshape(*rows.shape, *y.shape[1:])
        if length is not None:
            assert b.cut is not None
            x, y = b.cut.shortened(x, length), y[..., :length] if of_places(b.y) else y
        if b.prepare is not None:
            x = b.prepare(x, b.dtype)
        plain = Batch(x=x, y=y, mask=mask, key=key, notes=notes, progress=done, full=full)
        batch, dims = (self._of_one(plain, lazy), None) if self.axes is None else self._of_stack(plain, lazy)
        return batch, context, dims

    def _of_one(self, batch: Batch, lazy: dict[str, Lazy]) -> Batch:
        """Return the batch augmented, and with what teachers say of it."""
        x = batch.x
        if self.batches.augment is not None:
            x = self.batches.augment(x, batch.key)
        if self.images:
            x = by_pixels(x)
        mask = None if batch.full else batch.mask
        with torch.no_grad():
            told = {n: at_batch(x, mask, t.fn, *t.context, x).detach() for n, t in lazy.items()}
        return replace(batch, x=x, notes={**batch.notes, **told})

    def _of_stack(self, batch: Batch, lazy: dict[str, Lazy]) -> tuple[Batch, Any]:
        """Return the clients' batches augmented and with what teachers say; and the client axes of (batch, context)."""
        x, key_axis = batch.x, None if batch.key.ndim == 0 else 0
        if self.batches.augment is not None:
            x = vmap(self.batches.augment, in_dims=(0, key_axis))(x, batch.key)
        told = dict(batch.notes)
        for n, teacher in lazy.items():

            def tell(c: Any, x: Tensor, m: Tensor, fn: Callable[..., Any] = teacher.fn) -> Any:
                return at_batch(x, None if batch.full else m, fn, *c, x)

            with torch.no_grad():
                told[n] = vmap_trees(tell, (self.axes[0].lazy[n].context, 0, 0))(teacher.context, x, batch.mask)
        axes: Any = {"x": 0, "y": 0, "mask": 0, "key": key_axis, "progress": 0 if batch.progress.ndim else None}
        dims = Batch(**axes, notes=dict.fromkeys(told, 0), full=batch.full)  # type: ignore[arg-type]
        return replace(batch, x=x, notes=told), (dims, self.axes[1])

    def _program(self, kind: _Kind, args: Sequence[Tensor]) -> Callable[..., Any] | None:
        """Return this step compiled, else traced, else None, with a warning. Each is tried on copies: nothing moves."""
        kept = self.run.programs
        try:
            if self.compilation == "compile" and kept.compiler_works:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # of the compiler's own
                    graph = self._trace(kind, args, "compile")
                    compiled = torch.compile(graph, fullgraph=True, dynamic=False, options=_AS_WRITTEN)
                    self._check(kind, args, compiled)
                return compiled
        except Exception as error:
            kept.compiler_works = False
            _warn("compiled", "it is traced instead", error)
        try:
            traced = self._trace(kind, args, "trace")
            traced(*_copied(kind, args))
        except Exception as error:
            self._compute(*kind, _copied(kind, args))  # what the step itself raises is its author's to see
            _warn("traced", "it is computed as it is written", error)
            return None
        return traced

    def _check(self, kind: _Kind, args: Sequence[Tensor], compiled: Callable[..., Any]) -> None:
        """Raise ArithmeticError unless the compiled step computes what the step does, up to rounding."""
        here, there = _copied(kind, args), _copied(kind, args)
        compiled(*here)
        self._compute(*kind, there)
        for before, mine, theirs in [*zip(args, here, there, strict=True)][: kind[0]]:
            moved, error = (torch.nan_to_num((theirs - t).double()).norm() for t in (before, mine))
            # of how far the step moves this tensor; and where that is little, of its rounding
            if error > (0.3 if self.run.bf16 else 0.03) * moved + 1e-6 * torch.nan_to_num(theirs.double()).norm():
                raise ArithmeticError(
                    f"the compiled step moves a tensor of shape {list(theirs.shape)} otherwise: it is off by "
                    f"{float(error):.2g} in a move of {float(moved):.2g}"
                )

    def _trace(self, kind: _Kind, args: Sequence[Tensor], form: Compilation) -> Callable[..., Any]:
        from torch.fx.experimental.proxy_tensor import make_fx

        token, log = tracing.set(form), logging.getLogger("torch._subclasses.fake_tensor")
        was, log.disabled = log.disabled, True  # a wrong shape fills a screen there, and is said in a line by the step
        try:
            # "fake": shapes alone are computed, once; "real" works them out beside each operation, in twice the time
            trace = make_fx(lambda *a: self._compute(*kind, a), tracing_mode="fake", _allow_non_fake_inputs=True)
            return trace(*_copied(kind, args)).forward
        finally:
            tracing.reset(token)
            log.disabled = was


# The compiler's patterns take torch.add(a @ b, c, alpha=s) for a @ b + c, as the weight decay of a linear layer:
# https://github.com/pytorch/pytorch/issues/167313 and its kin, with torch 2.13
_AS_WRITTEN: dict[str, str | int | bool | Callable[..., Any]] = {"pattern_matcher": False}


def _copied(kind: _Kind, args: Sequence[Tensor]) -> list[Tensor]:
    """Return the arguments, with those that a step moves in place as copies of the same layout."""
    return [a.clone() if i < kind[0] else a for i, a in enumerate(args)]


def _warn(what: str, instead: str, error: Exception) -> None:
    warn(f"a training step cannot be {what} ({first_line(error)}): {instead}", EngineWarning)


def _map2(fn: Callable[[Tensor, int | None], Tensor], values: Any, axes: Any) -> Any:
    flat, spec = tree.flatten(values)
    return tree.unflatten([fn(v, a) for v, a in zip(flat, tree.leaves(axes), strict=True)], spec)


def _images_on_cpu(batches: Schedule) -> bool:
    return batches.x.ndim == 4 and batches.x.device.type == "cpu"
