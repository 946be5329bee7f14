"""The frozen front of a run's network, computed once for each example where that gives the same bits."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedloom.coordinator.plan import Plan
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import padded, probe
from fedloom.core.errors import first_line
from fedloom.core.fold.execution import threads
from fedloom.core.fronts import Front, same_bits
from fedloom.core.layout import by_pixels
from fedloom.core.model import Model
from fedloom.core.network_makers import own_defaults
from fedloom.core.random import derive
from fedloom.core.task import loss_of, notes_of
from fedloom.core.types import Params, Weights
from fedloom.data import Examples, Federation, Normalise
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.population import Population
from fedloom.storage import codec

IN_MEMORY = 2 << 30  # bytes of outputs, above which they are kept on disk
ON_DISK = 64 << 30  # bytes of outputs, above which they are not kept
_AT_A_TIME = 200
_TRIED = 500  # examples
_STACKED = 2000  # rows of a stack, at most, in which a front is tried

Compute = Callable[[Tensor], Tensor]
# outputs by federation, for runs of a comparison: kept as long as one of them is
_made: weakref.WeakKeyDictionary[Federation, weakref.WeakValueDictionary[Any, Federation]]
_made = weakref.WeakKeyDictionary()


class Frame(NamedTuple):
    """Facts of how a run is computed, before there is an engine."""

    kind: type[Engine]
    options: Options
    algorithm: Algorithm[Any, Any]  # as the engine will run it
    trained: Population  # who trains
    panel: Sequence[int]  # clients whose personal models are evaluated
    cohort: int  # clients of a round
    threads: int | None  # of PyTorch


@own_defaults()
def settled(job: Plan, frame: Frame) -> tuple[Population, dict[str, str]]:
    """Return the population that a run computes with, and what is to be said of its networks' frozen fronts.

    It is the job's own, or one of networks without their front and of examples that are the front's outputs.

    The rule, the first line that holds:

    1. `front` is off, examples are on devices, steps are compiled or of mixed precision, several architectures are
       given the same public examples, or pooled ones, inputs are augmented, or the algorithm needs the whole network:
       in every pass;
    2. the run computes no more examples, in all its rounds, than are to be computed once and tried: in every pass;
    3. no layers are a front (`core/fronts.py`): in every pass;
    4. the largest front whose outputs are the same bits in the batches that occur, and behind which logits and
       gradients are: once, in memory up to 2 GiB, else on disk up to 64 GiB and half of what is free there (on a GPU
       in memory alone, up to a quarter of what is free);
    5. else in every pass.

    Of several architectures each has a front of its own, and an equal part of what is kept, or none.

    `frame`: how it is computed without that.
    """
    population = job.population
    said = [name for name, model in population.models.items() if model.num_frozen]
    if not said:
        return population, {}
    why = _hindrance(job, frame)
    if why is not None:
        return population, dict.fromkeys(said, f"computed in every pass, {why}")
    now = torch.get_num_threads() if frame.threads is None else frame.threads
    counts, chosen, about = sorted({now, 1} if frame.kind.on_one_thread else {now}), list[_Choice](), {}
    for name in said:
        try:
            with threads(now):
                chosen.append(_Choice(job, frame, counts, name, len(said)))
            about[name] = chosen[-1].said
        except _NoFrontError as error:
            about[name] = f"computed in every pass, {error}"
        except Exception as error:  # whatever a user's forward raises where nothing else does
            about[name] = f"computed in every pass, since it cannot be tried: {first_line(error)}"
    models, behind = dict(population.models), dict[str, Federation]()
    for choice in chosen:
        models[choice.name], behind[choice.name] = choice.rest, choice.federation
    if len(models) == 1 and behind:
        return replace(population, federation=chosen[0].federation, models=models), about
    return (replace(population, models=models, behind=behind) if behind else population), about


def _hindrance(job: Plan, frame: Frame) -> str | None:
    """Return why no front is looked for."""
    algorithm, options = type(job.algorithm), frame.options
    if job.settings.front == "off":
        return "front = 'off'"
    if frame.kind.elsewhere:
        return "since the examples are on devices"
    if options.compilation == "compile":
        return "since steps are compiled"
    if options.bf16:
        return "since training is in bfloat16"
    if len(job.population.models) > len(frame.trained.models):
        return f"since {algorithm.__name__} trains one of several architectures"
    if len(job.population.models) > 1 and job.federation.public is not None:
        return "since several architectures are given the same public examples"
    if job.federation.drift is not None and job.federation.drift.changes_features:
        return "since inputs drift"
    if job.federation.train.augment is not None:
        return "since inputs are augmented"
    if job.federation.train.has_tokens:
        return "since inputs are token ids, whose embeddings take more room than work"
    if job.algorithm.requires.front is None and not algorithm.__module__.startswith("fedloom."):
        return f"since {algorithm.__name__} is of your own and does not say Requires(front=False)"
    if job.algorithm.requires.front:
        return f"since {algorithm.__name__} gives networks inputs of its own, or calls their parts"
    return None


class _NoFrontError(Exception):
    """Refusal to compute a front once; says why."""


class _Choice:
    """The front that is chosen of a network, the `rest` behind it, its `federation`, and what is `said` of it.

    `several`: networks with frozen parts, which share what may be kept.

    Raises:
        _NoFrontError: none can be.
    """

    def __init__(self, job: Plan, frame: Frame, counts: Sequence[int], name: str, several: int = 1) -> None:
        self.job, self.frame, self.cohort, self.counts = job, frame, frame.cohort, counts
        p = self.before = job.population
        self.name, self.model, self.several = name, p.models[name], several
        if (passes := self._passes()) <= (once := _count(p.federation) + sum(self._widths())):
            raise _NoFrontError(f"since the run computes {passes:,} examples, and {once:,} would be computed first")
        self.weights = tree.cast(self.model.init(derive(p.seed, "init")), device=p.device, dtype=p.dtype)
        self.some = self._inputs(p.federation.train, torch.arange(min(_TRIED, len(p.federation.train))))
        first = ""
        for front in self.model.fronts(self.weights, self.some[:2]):
            compute = self.model.through(front)
            with torch.no_grad():
                table = self._outputs(compute, self.some, torch.empty)
            rest = self.model.behind(front, self.some[:1], table)
            why = self._problem(front, rest, compute, table)
            if why is None:
                self.rest, (self.federation, place) = rest, self._kept(front, compute, table)
                size = f"{_bytes(self.federation, table) / (1 << 20):.1f} MiB"
                self.said = f"{front}, computed once for each example, {size} {place}"
                return
            first = first or f"since {front} {why}"
        raise _NoFrontError(first or "since no frozen layers, and they alone, are given the network's input")

    def _passes(self) -> int:
        """Return about how many examples the network is computed for in a run."""
        s, f, local = self.job.settings, self.before.federation, self.frame.algorithm.training
        size = self.frame.trained.sizes.mean()
        trained = self.cohort * (local.batch_size * local.steps if local.steps else size * local.epochs)
        tested = 0 if f.test is None else len(f.test)
        return int(s.rounds * (trained * self.before.members[self.name] / self.before.num_clients + tested))

    def _inputs(self, examples: Examples, rows: Tensor) -> Tensor:
        stored = examples.x[rows.to(examples.x.device)].to(self.before.device)
        x = examples.normalise(stored, self.before.dtype)
        return by_pixels(x) if x.ndim == 4 and x.device.type == "cpu" else x

    def _outputs(self, compute: Compute, x: Tensor | Examples, new: Callable[..., Tensor]) -> Tensor:
        """Return what the front returns of each of some inputs, or examples; all batches are of the same size."""
        count, table = len(x), None
        width = min(_AT_A_TIME, count)
        for start in range(0, count, width):
            rows = torch.arange(start, start + width).clamp(max=count - 1)
            out = compute(self._inputs(x, rows) if isinstance(x, Examples) else x[rows])[: count - start]
            table = new((count, *out.shape[1:]), dtype=out.dtype) if table is None else table
            table[start : start + len(out)] = out
        assert table is not None
        return table

    # ---- whether results are the same bits

    def _problem(self, front: Front, rest: Model, compute: Compute, table: Tensor) -> str | None:
        """Return why a front cannot be computed once; `table`: what it returns of some examples."""
        model = self.model
        read = {str(getattr(self.job.algorithm, f.name)) for f in fields(self.job.algorithm)} & {*model.layers}
        within = [n for n in read if n not in front.layers[-1:] and n.startswith(tuple(f"{f}." for f in front.layers))]
        if within or read & {*front.layers[:-1]}:
            return f"has the layer {next(iter(within or read))!r}, which {type(self.job.algorithm).__name__} reads"
        if not bool(torch.isfinite(table).all()):
            return "returns numbers that are not finite"
        kernels = any(p.ndim == 4 for p in self.weights.params.values())
        if kernels and (self.some.ndim == 4) != (table.ndim == 4):
            return "turns images into something else, and kernels behind it would lie otherwise in memory"
        for count in self.counts:
            with threads(count), torch.no_grad():
                for width in sorted(self._widths()):
                    if not self._alike(compute, table, width, None):
                        return f"gives other last bits in batches of {width} than of {min(_AT_A_TIME, len(table))}"
                for width in sorted(self._widths()) if self.frame.kind.stacked else ():
                    for clients in sorted({1, 2, self.cohort}):
                        if clients * width <= _STACKED and not self._alike(compute, table, width, clients):
                            return f"gives other last bits in a stack of {clients} clients with batches of {width}"
            with threads(count):
                if why := self._otherwise(rest, table):
                    return why
        return None

    def _alike(self, compute: Compute, table: Tensor, width: int, clients: int | None) -> bool:
        """Return whether outputs are those of the table in batches of this width, in a stack of clients."""
        count = width * (clients or 1)
        places = torch.randperm(len(table), generator=torch.Generator().manual_seed(0)).repeat(-(-count // len(table)))
        x = self.some[places[:count]]
        if clients is None:
            x = by_pixels(x) if x.device.type == "cpu" else x
            out = compute(x)
        else:  # in a stack images are not laid by pixels
            x = x.contiguous().reshape(clients, width, *x.shape[1:])
            out = vmap(compute)(x).flatten(0, 1)
        return same_bits(out.cpu(), table[places[:count]])

    def _widths(self) -> set[int]:
        """Return the numbers of rows of the batches of a run."""
        job = self.job
        f = self.frame.trained.federation
        held = [part for part in (f.local_test, f.local_val) if part is not None]
        parts = [*(f.at(t).partition for t in range(job.settings.rounds if f.arrives else 1)), *held]
        sizes = {int(n) for part in parts for n in part.sizes if n}
        sizes |= set() if f.public is None else {len(f.public)}
        planned = _batch_sizes(job.algorithm)
        widths = {min(most, n if n < 1 else padded(n)) for most in {*planned, _AT_A_TIME} for n in sizes}
        if f.public is not None:
            widths |= {min(most, len(f.public)) for most in planned}
        panel = list(self.frame.trained.holders(self.frame.panel))
        evaluated = [int(part.sizes[panel].sum()) for part in held]
        for n in [*evaluated, *([] if f.test is None else [len(f.test)])]:
            widths |= {min(n, 500), n % 500}
        if self.frame.kind.stacked:  # which has lock-steps of narrow clients
            widths |= {1 << i for i in range(8) if self.before.num_clients * max(widths) > _STACKED}
        return widths - {0}

    def _otherwise(self, rest: Model, table: Tensor) -> str | None:
        """Return how the rest of the network answers otherwise than the whole, if it does, or a task reads inputs."""
        p, task, train = self.before, self.before.task, self.before.federation.train
        B = min(self.job.algorithm.local.batch_size, len(table))
        y = train.y[:B].to(p.device)
        features = table[:B].to(p.device)
        inputs = self.some[:B], by_pixels(features) if p.device.type == "cpu" else features
        read: list[bool] = []
        params = self.weights.params

        def spied() -> Tensor:
            read.append(True)
            return self.some[:B].clone()

        def gradient(model: Model, x: Tensor) -> list[Tensor]:
            batch = probe(x, y, notes_of(task, y, p.dtype))

            def loss(params: Params) -> tuple[Tensor, Any]:
                logits, moved = model.train(Weights(params, self.weights.buffers), batch)
                return loss_of(task, logits, batch, spied), (logits, moved)

            return tree.leaves(grad(loss, has_aux=True)(params))

        def answers(model: Model, x: Tensor) -> list[Tensor]:
            with torch.no_grad():
                logits = model(self.weights, x)
            out = [logits, *gradient(model, x)]
            if self.frame.kind.stacked:
                pair = torch.stack([x.contiguous()] * 2)
                out += vmap(lambda x: tuple(gradient(model, x)))(pair)
            return out

        whole, short = (answers(m, x) for m, x in zip((self.model, rest), inputs, strict=True))
        if read:
            return f"is given what the loss of {type(task).__name__} reads too"
        if len(whole) != len(short) or not all(map(same_bits, whole, short)):
            return "is not all that the rest of the network depends on, or the rest gives other last bits behind it"
        return None

    # ---- what is kept

    def _kept(self, front: Front, compute: Compute, like: Tensor) -> tuple[Federation, str]:
        """Return the federation whose examples are outputs of the front, and where these are."""
        f, device = self.before.federation, self.before.device
        size = _bytes(f, like)
        on_disk = size > IN_MEMORY // self.several
        if device.type == "cuda" and size > torch.cuda.mem_get_info(device)[0] // 4 // self.several:
            raise _NoFrontError(f"since what {front} returns takes {size >> 20} MiB, a quarter of free memory or more")
        free = shutil.disk_usage(tempfile.gettempdir()).free // 2
        if on_disk and size > min(ON_DISK, free) // self.several:
            raise _NoFrontError(f"since what {front} returns takes {size >> 20} MiB, more than is kept on disk")
        key = codec.digest(self.model.frozen), front, str(device), str(like.dtype), on_disk
        known = _made.setdefault(f, weakref.WeakValueDictionary())
        if (made := known.get(key)) is None:
            new = _on_disk if on_disk else torch.empty

            def of(part: Examples | None) -> Examples | None:
                if part is None:
                    return None
                with torch.no_grad():
                    x = self._outputs(compute, part, new)
                return replace(part, x=x, normalise=Normalise(), columns=(), preparation=None)

            train = of(f.train)
            assert train is not None
            made = known[key] = replace(f, train=train, test=of(f.test), public=of(f.public))
        return made, f"in files of {tempfile.gettempdir()}" if on_disk else "in memory"


def _count(federation: Federation) -> int:
    parts = (federation.train, federation.test, federation.public)
    return sum(len(part) for part in parts if part is not None)


def _bytes(federation: Federation, like: Tensor) -> int:
    return _count(federation) * like[0].nbytes


def _on_disk(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an empty tensor in a file that is gone with it."""
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    with tempfile.TemporaryFile() as file:  # the mapping outlives it
        return torch.from_numpy(np.memmap(file, kind, "w+", shape=shape))


def _batch_sizes(settings: Any) -> set[int]:
    """Return the batch sizes that an algorithm's settings name."""
    own = {f.name: getattr(settings, f.name) for f in fields(settings)}
    inner = [value for value in own.values() if is_dataclass(value) and not isinstance(value, type)]
    named = {value for name, value in own.items() if name.endswith("batch_size") and isinstance(value, int)}
    return named.union(*map(_batch_sizes, inner))
