"""Choose an engine by a written rule, and tell whether a model can be stacked at all."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from fedloom.core import tree
from fedloom.core.batch import Batch, Padded, cut_to, probe
from fedloom.core.errors import EngineWarning, SettingError, first_line, quiet_vmap, warn, without_rules
from fedloom.core.fold.execution import Compilation
from fedloom.core.local_training import Local
from fedloom.core.losses import objective
from fedloom.core.model import Model
from fedloom.core.network_checks import alike, awake
from fedloom.core.network_makers import own_defaults
from fedloom.core.task import Task, notes_of
from fedloom.core.types import Params, Weights
from fedloom.engines.by_name import EngineName, check_alone, engine_named, why_no_fork
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import best_chunk
from fedloom.engines.population import Population, Stacking

CompilationName = Literal["auto", "none", "trace", "compile"]
MAX_LOOPED = 2.0  # clients that a lock-step advances on average, up to which a stack does not pay on a CPU
MAX_WASTED = 1.25  # times as many places of sequences, up to which a stack pays
MAX_FLOPS = 3e8  # of a client's step with an operation that `vmap` computes client by client, up to which a stack pays
_TRIED = 64  # examples of which some are taken to try a stack
MAX_STACKED = 1_000_000  # parameters of a model, above which the weights of a stack leave the caches at each step
MIN_FLOPS = 5e6  # of a client's step, from which two clients pay in processes, where they travel as messages
FLOPS_PER_THREAD = 1e8  # of a lock-step, about a millisecond of a core
STEPS_TO_SHARE_OUT = 8  # of a client on average, from which stacks pay in processes, where they travel as messages
# Measured on two cores with small networks (docs/benchmarks.md); their order of magnitude matters.
STEPS_TO_TRACE = 100  # lock-steps that one graph must run to save the time of tracing it
STEPS_TO_COMPILE = 25_000  # the same of compiling it, the start of the compiler included
MAX_COMPILED = 20_000  # parameters of a model, above which compiled matrix products are slower than traced ones


def choose(name: EngineName, population: Population, local: Local, cohort_size: int) -> tuple[type[Engine], str]:
    """Return the engine, and why.

    The rule of "auto", the first line that holds:

    1. convolutions or recurrent layers on a CPU: workers (`vmap` makes convolutions grouped ones and has no rule for
       recurrent layers: slower than one client after the other); loop where processes cannot be forked, of one client,
       and of three whose steps pay two threads (2e8 FLOPs): one core in two would wait for the third;
    2. a model, or a task's loss, that `vmap` cannot take: loop (also where "stacked" was asked for, with a warning);
       a model that looks across its batch, where a stack has rows of padding: loop; of token ids on a CPU, as models
       of Hugging Face that take no ready mask, by the rule of recurrent layers;
    3. a GPU: stacked;
    4. attention with a ready mask (`core/masking.py`), or in steps of a client of more than 3e8 FLOPs: by the rule of
       recurrent layers. PyTorch has no rule for its attention in `vmap` on a CPU, and computes it client by client;
       in smaller steps a stack pays all the same, since calls are what costs;
    5. sequences that are cut to their lengths, of which a stack, whose clients are as long as the longest, would
       compute more than 1.25 times as many places as clients one by one: by the rule of recurrent layers;
    6. more than a million parameters, and steps of one client that pay a thread for each core: loop, since the weights
       of a stack leave the caches at each step;
    7. no more than 2 clients in parallel per lock-step, by the sizes of the clients: loop; from steps of 5e6 FLOPs and
       1.5 clients in parallel on by the rule of recurrent layers;
    8. at least two stacks of the size that pays (`best_chunk`), of clients that take 8 steps on average, on a CPU where
       processes can be forked, and whose lock-steps pay no thread more (5e7 FLOPs): stacks;
    9. else stacked.

    Raises:
        SettingError: "workers" or "stacks" was asked for, and cannot be; "stacked" or "stacks" was, for a model that
            looks across its batch; or this is one of several ranks, and "auto" is neither "gloo" nor "mpi".
    """
    check_alone(name)
    if name not in ("auto", "stacked", "workers", "stacks"):
        return engine_named(name), "asked for"
    on_cpu = population.device.type == "cpu"
    hindrance = why_no_fork() if on_cpu else f"the device is {population.device}, which processes cannot share"
    if name in ("workers", "stacks") and hindrance is not None:
        raise SettingError(f"engine = {name!r} forks processes, and {hindrance}: use engine = 'auto'")
    if name == "workers":
        return engine_named(name), "asked for"
    layers = "convolutions" if _convolutional(population) else "recurrent layers" if _recurrent(population) else None

    def one_by_one(what: str) -> tuple[type[Engine], str]:
        if cohort_size == 1 or (cohort_size == 3 and step_flops(population, local) >= 2 * FLOPS_PER_THREAD):
            return engine_named("loop"), f"{what}, {cohort_size} in a cohort"
        return (engine_named("loop"), f"{what}, and {hindrance}") if hindrance else (engine_named("workers"), what)

    if name == "auto" and on_cpu and layers is not None:
        return one_by_one(f"{layers} on a CPU")
    for label, model in population.models.items():
        tried = stacking(model, population)
        if tried.problem or tried.differs:
            reason = f"model {label!r} cannot be stacked ({tried.problem or tried.differs})"
            if name != "auto" and tried.differs:
                raise SettingError(
                    f"engine = {name!r} computes clients side by side and pads the smaller ones' batches, which may "
                    f"change no answer, and {tried.differs} of model {label!r}, which looks beyond one example: use "
                    "engine = 'auto' or 'loop', where a batch has no padding"
                )
            if name != "auto":
                warn(f"{reason}: using the loop engine instead", EngineWarning)
            elif on_cpu and population.federation.train.has_tokens:
                return one_by_one(f"token ids on a CPU, and {reason}")
            return engine_named("loop"), reason
    if name != "auto":
        return engine_named(name), "asked for"
    if not on_cpu:
        return engine_named("stacked"), "a GPU"
    if any(model.arguments and model.arguments.mask != "tokens" for model in population.models.values()):
        return one_by_one("attention with a ready mask on a CPU")
    flops, largest = step_flops(population, local), max(model.num_params for model in population.models.values())
    for tried in (stacking(model, population) for model in population.models.values()):
        if tried.one_by_one and flops > MAX_FLOPS:
            return one_by_one(f"{tried.one_by_one.removesuffix('_for_cpu')} on a CPU in steps of {flops:.1g} FLOPs")
    if (waste := max(_places_wasted(model, population) for model in population.models.values())) > MAX_WASTED:
        return one_by_one(f"sequences of unequal clients on a CPU, {waste:.1f} times as many places in a stack")
    taken = lock_steps(population, local, cohort_size)
    parallel = taken.clients / len(population.models)
    if largest > MAX_STACKED and flops >= FLOPS_PER_THREAD * torch.get_num_threads():
        return engine_named("loop"), f"{largest:,} parameters, whose steps of {flops:.1g} FLOPs keep all cores busy"
    if parallel <= MAX_LOOPED:
        why = f"about {parallel:.1f} clients in parallel"
        return one_by_one(why) if parallel > 1.5 and flops >= MIN_FLOPS else (engine_named("loop"), why)
    each = cohort_size / len(population.models)
    chunk = best_chunk(min(model.num_params for model in population.models.values()))
    pays = each >= 2 * chunk and hindrance is None and taken.steps * parallel >= STEPS_TO_SHARE_OUT * each
    pays = pays and chunk * flops < FLOPS_PER_THREAD / 2
    return engine_named("stacks" if pays else "stacked"), f"about {parallel:.0f} clients in parallel"


def check_used(
    asked: EngineName, kind: type[Engine], chunk: int | None, workers: int | None, deadline: float | None
) -> None:
    """Warn of settings that the engine which was asked for does not use; "auto" may use them elsewhere.

    Raises:
        SettingError: a deadline, without which a run would be another, and no clients in other processes.
    """
    for name, value, user in (("chunk", chunk, "stacked"), ("workers", workers, "workers")):
        if value is not None and asked != "auto" and name not in kind.uses:
            warn(
                f"{name} = {value} is for the engine {user}, and has no effect with {kind.name}: leave it out, or "
                "use engine = 'auto'",
                EngineWarning,
            )
    if deadline is not None and "deadline" not in kind.uses:
        raise SettingError(
            f"deadline = {deadline:g} is for clients in other processes, and this run has the engine {kind.name}: use "
            "engine = 'workers', 'gloo' or 'mpi', or no deadline"
        )


def choose_compilation(
    kind: type[Engine], population: Population, local: Local, cohort_size: int, rounds: int
) -> Compilation:
    """Return how the training step is executed in a run of `rounds` rounds.

    The rule of "auto", the first line that holds:

    1. a GPU, or recurrent layers: none;
    2. fewer than 100 steps of the run for each graph it needs: none. Steps are the lock-steps of a stack, or those of
       all clients on the loop and on workers. A loop needs 2 graphs, workers make theirs side by side, a stack needs 1,
       or one for each power of two of clients where clients take different numbers of steps; and each of these again
       for each length to which sequences are cut;
    3. a model that `vmap` cannot take, which a trace would hardly take either: none;
    4. a stack of models of at most 20,000 parameters, frozen ones included, without convolutions, 25,000 steps for
       each graph, and a compiler: compile;
    5. else trace.
    """
    if population.device.type != "cpu" or _recurrent(population):
        return "none"
    taken = lock_steps(population, local, cohort_size)
    if not kind.stacked:
        graphs, steps = 2, rounds * taken.steps * taken.clients
    else:
        cohort = min(cohort_size, population.num_clients)
        graphs, steps = (cohort - 1).bit_length() + 1 if taken.ragged else 1, rounds * taken.steps
    graphs *= max(_lengths(model, population) for model in population.models.values())
    if steps < STEPS_TO_TRACE * graphs:
        return "none"
    if not kind.stacked:
        stackable = all(stacking(model, population).problem is None for model in population.models.values())
        return "trace" if stackable else "none"
    small = all(model.num_params + model.num_frozen <= MAX_COMPILED for model in population.models.values())
    pays = steps >= STEPS_TO_COMPILE * graphs and small and not _convolutional(population)
    return "compile" if pays and has_compiler() else "trace"


def _lengths(model: Model, population: Population) -> int:
    """Return to how many different lengths batches may be cut, each a graph; 1 where sequences are whole."""
    if model.cut is None:
        return 1
    places = model.cut.places(population.federation.train.x)
    return len({cut_to(n, places) for n in np.unique(_ends(model.cut, population)).tolist()})


def _places_wasted(model: Model, population: Population) -> float:
    """Return the longest sequence of all clients by the mean over clients of their longest, as they are cut."""
    if model.cut is None:
        return 1.0
    ends, parts = _ends(model.cut, population), population.federation.partition
    places = model.cut.places(population.federation.train.x)
    longest = [cut_to(int(ends[parts.rows(k)].max(initial=1)), places) for k in range(parts.num_clients)]
    return max(longest) / float(np.mean(longest))


def _ends(how: Padded, population: Population) -> npt.NDArray[np.int64]:
    """Return the number of places of each training sequence before its padding, [N]."""
    return how.ends(population.federation.train.x).cpu().numpy()


@dataclass(frozen=True)
class LockSteps:
    """Lock-steps of a round with a typical cohort.

    Attributes:
        steps: of its longest client.
        clients: that a step advances on average.
        ragged: whether clients take different numbers of steps.
    """

    steps: float
    clients: float
    ragged: bool


def lock_steps(population: Population, local: Local, cohort_size: int) -> LockSteps:
    """Return the lock-steps of a round.

    Args:
        population: who takes part.
        local: the plan of a round's batches.
        cohort_size: clients of a round.
    """
    whole = -(-population.sizes // local.batch_size)
    steps = np.full(population.num_clients, local.steps) if local.steps else whole * local.epochs
    longest = float(np.sort(steps)[-max(1, len(steps) // max(1, cohort_size)) :].mean())
    clients = min(cohort_size, population.num_clients) * float(steps.mean()) / longest
    return LockSteps(longest, clients, bool((steps != steps[0]).any()))


def warn_of_slow_bf16(bf16: bool, device: torch.device) -> None:
    """Warn where `bf16` is asked for of a CPU without its arithmetic: training is then far slower than in float32."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of PyTorch do not tell
    if bf16 and device.type == "cpu" and known and not any(has for name, has in known.items() if "bf16" in name):
        warn("bf16 needs bf16 arithmetic, which this processor lacks: leave bf16 out, it is slower here", EngineWarning)


def step_flops(population: Population, local: Local) -> float:
    """Return the FLOPs of the matrix products and convolutions of one client's step."""
    examples = min(local.batch_size, float(population.sizes.mean()))
    known = {model: population.tried.get(model) for model in population.models.values()}  # counted as it was tried
    return examples * max(getattr(tried, "flops", 0.0) or flops_of(model, population) for model, tried in known.items())


@own_defaults()
def flops_of(model: Model, population: Population, others: dict[Any, Any] | None = None) -> float:
    """Return the FLOPs of the matrix products and convolutions of one example's gradient, whatever the engine.

    `others`: those of operators that PyTorch does not count, as `FlopCounterMode` has them.
    """
    examples = population.federation.train
    x = examples.normalise(examples.x[:2], population.dtype)  # two: a forward may treat one apart
    initial = tree.cast(model.init(0), dtype=population.dtype)
    weights = Weights(Params({n: p.detach().requires_grad_() for n, p in initial.params.items()}), initial.buffers)
    with FlopCounterMode(display=False, custom_mapping=others) as counted:
        logits, _ = model.train(weights, probe(x))
        torch.autograd.grad(logits.square().sum(), list(weights.params.values()), allow_unused=True)
    return float(counted.get_total_flops()) / len(x)


def has_compiler() -> bool:
    """Return whether there is a C++ compiler, which `torch.compile` needs on a CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++"))


def _convolutional(population: Population) -> bool:
    return any(m.has_convolutions for m in population.models.values())


def _recurrent(population: Population) -> bool:
    return any(m.is_recurrent for m in population.models.values())


def stacking(model: Model, population: Population) -> Stacking:
    """Return what `vmap` makes of clients with this model; it is tried once for each population."""
    if model not in population.tried:
        population.tried[model] = _try_to_stack(model, population)
    return population.tried[model]


@own_defaults()
def _try_to_stack(model: Model, population: Population) -> Stacking:
    examples = population.federation.train
    given = _two_clients(model, population, population.dtype)
    try:
        with without_rules() as lacking, FlopCounterMode(display=False) as counted:
            answers = _side_by_side(*given)
    except Exception as error:  # whatever a user's forward raises under vmap is the reason to name
        return Stacking(first_line(error))
    weights, (x, mask, _) = given[1], (t[0] for t in given[2:])
    y = examples.y[:1].to(population.device)
    y = torch.zeros_like(mask, dtype=torch.int64) if examples.has_classes else torch.cat([y] * len(mask))
    problem = _try_task(model, weights, x, y, torch.ones_like(mask), population.task)
    differs = _what_differs(given, answers)
    if differs and population.dtype != torch.float64:
        try:  # where rounding moves nothing
            given = _two_clients(model, population, torch.float64)
            differs = _what_differs(given, _side_by_side(*given))
        except Exception:  # of a forward that makes tensors of one dtype
            pass
    return Stacking(problem, differs, next(iter(lacking), None), counted.get_total_flops() / given[3].numel())


_Given = tuple[Model, Weights, Tensor, Tensor, Tensor]  # of two clients: inputs [2, B, ...], mask [2, B], keys [2]


def _two_clients(model: Model, population: Population, dtype: torch.dtype) -> _Given:
    """Return a model with three examples of each of two clients, of which the last one of the first is padding.

    The padding is the largest of some examples, so that a maximum over the rows shows it too.
    """
    device, train = population.device, population.federation.train
    model = model.bind(0, dtype, device)
    rows = torch.linspace(0, len(train) - 1, min(_TRIED, len(train)), dtype=torch.float64).round().long()
    largest = rows[train.x[rows].flatten(1).double().square().sum(1).argmax()]
    others = rows[rows != largest] if len(rows) > 1 else rows
    chosen = others[torch.linspace(0, len(others) - 1, 5, dtype=torch.float64).round().long()]
    stored = train.x[torch.cat([chosen[:2], largest[None], chosen[2:]])]
    x = train.normalise(stored.to(device), dtype)
    mask = torch.tensor([[True, True, False], [True, True, True]], device=device)
    weights = awake(tree.cast(model.init(0), device=device, dtype=dtype))
    return model, weights, x.reshape(2, 3, *x.shape[1:]), mask, torch.arange(2, device=device)


def _side_by_side(model: Model, weights: Weights, x: Tensor, mask: Tensor, keys: Tensor) -> tuple[Tensor, Params]:
    """Return what the first of two clients gets in a stack, in training: logits [B, C], and its buffers."""

    def loss(params: Params, buffers: Params, x: Tensor, mask: Tensor, key: Tensor) -> tuple[Tensor, Any]:
        logits, after = model.train(Weights(params, buffers), Batch(x=x, y=mask.long(), mask=mask, key=key))
        return logits.square().sum(), (logits, after)

    two = tree.stack([weights] * 2)
    _, (logits, after) = vmap(grad(loss, has_aux=True))(two.params, two.buffers, x, mask, keys)
    return logits[0].detach(), Params({name: b[0] for name, b in after.items()})


def _what_differs(given: _Given, stacked: tuple[Tensor, Params]) -> str | None:
    """Return what changes the answers of the first client, given those that it gets in a stack; None if nothing does.

    On the loop a client's batch is alone, and no row of it is padding.
    """
    model, weights, (x, mask, key) = given[0], given[1], (t[0] for t in given[2:])
    real = int(mask.sum())

    def train(x: Tensor, mask: Tensor) -> tuple[Tensor, Params]:
        logits, after = model.train(weights, Batch(x=x, y=mask.long(), mask=mask, key=key, full=bool(mask.all())))
        return logits[:real], after

    with torch.no_grad():
        alone = train(x[:real], mask[:real])
        if not alike(alone, (stacked[0][:real], stacked[1])):
            padded = alike(alone, train(x, mask))
            return (
                f"{'another client beside it changes' if padded else 'rows of padding change'} the answers in training"
            )
        if not alike(model(weights, x[:real], mask[:real]), model(weights, x, mask)[:real]):
            return "rows of padding change the answers in evaluation"
    return None


def _try_task(model: Model, weights: Weights, x: Tensor, y: Tensor, mask: Tensor, task: Task) -> str | None:
    """Return why `vmap` cannot take what the task makes of a stackable model's answers; None if it can."""

    def loss(logits: Tensor, batch: Batch) -> Tensor:
        return objective(task, logits, batch, weights.params)

    try:
        key = torch.zeros((), dtype=torch.int64, device=y.device)
        batch = Batch(x=x, y=y, mask=mask, key=key, notes=notes_of(task, y, x.dtype))
        logits = model(weights, x)
        with quiet_vmap():
            vmap(grad(loss))(torch.stack([logits] * 2), tree.stack([batch] * 2))
    except Exception as error:
        return f"its task {type(task).__name__}, {first_line(error)}"
    return None
