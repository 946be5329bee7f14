"""Try a network and a task before a run: in evaluation, and in training with a gradient."""

from __future__ import annotations

import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedloom.coordinator.plan import Plan
from fedloom.core.batch import Batch
from fedloom.core.batches import Batches
from fedloom.core.errors import SettingError, first_line
from fedloom.core.fold import minimise
from fedloom.core.losses import objective
from fedloom.core.model import Model
from fedloom.core.network_checks import check_passes
from fedloom.core.network_copies import NotCopied
from fedloom.core.network_makers import own_defaults
from fedloom.core.task import Task, check_padding, notes_of, targets_of
from fedloom.core.task_measures import added, chosen_measures, sums_of
from fedloom.core.types import Weights, replace
from fedloom.data import Examples, Tokens
from fedloom.evaluate import evaluate_rows
from fedloom.tasks import ClassTask

_TRIED = 64  # examples of targets that are no classes
_TRIED_IMAGES = 4  # examples whose targets are of pixels: each may be large


def _different(train: Examples) -> npt.NDArray[np.int64]:
    """Return the first example of each class, or of a few different targets."""
    y = train.y.cpu().numpy()
    if train.has_tokens and len(train.shape) == 1:  # with the largest id, and the longest sequence
        how = train.normalise
        longest = int(how.ends(train.x).argmax()) if isinstance(how, Tokens) and how.padding is not None else 0
        rows = {0, int(train.x.amax(1).argmax()), longest, *_different_targets(train, y).tolist()}
        return np.array(sorted(rows), np.int64)
    return _different_targets(train, y)


def _different_targets(train: Examples, y: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if train.has_classes:
        return np.unique(y, return_index=True)[1]
    count = _TRIED_IMAGES if train.has_pixels else _TRIED
    return np.unique(y.reshape(len(y), -1)[:count], axis=0, return_index=True)[1]


def _apart(train: Examples, first: npt.NDArray[np.int64]) -> tuple[Examples, Examples]:
    """Return two examples, of different classes where there are several, and two others as far as there are so many."""
    more = [row for row in range(min(len(train), len(first) + 4)) if row not in first]
    rows = [*dict.fromkeys([first[0], first[-1], *first[1:3], *more])]
    pair = (rows * 2)[:2]
    return train.select(np.array(pair)), train.select(np.array(rows[2:4] if len(rows) > 3 else rows[-1:] * 2))


@dataclass(frozen=True)
class Tried:
    """Findings of the trial of a network.

    Attributes:
        alone: whether BatchNorm's running statistics are measured on one example: of one value there is no variance.
        adding_up: the names of attributes that change with each batch, though no answer shows it.
    """

    alone: bool
    adding_up: list[str]


@own_defaults()
def try_model(model: Model, job: Plan) -> Tried:
    """Raise SettingError unless a model takes one example of each class, and the task its answers; in training too.

    Raise it also where rows of padding behind these examples move the task's loss, where what a pass has seen or drawn
    would reach another, where a training step cannot be taken, or where the algorithm compares more logits than the
    model has.
    """
    task, train, network, dtype = job.task, job.federation.train, model, job.population.dtype
    first, model = _different(train), model.bind(0, dtype)
    chosen, weights, how = train.select(first), model.init(0, dtype), ""
    two, others = _apart(train, first)

    def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        pair, other = (e.normalise(e.x, dtype) for e in (two, others))
        alike = other.is_floating_point() and torch.equal(pair, other)  # as of devices, whose examples are not here
        return pair, other + 1 if alike else other

    try:
        names = chosen_measures(task, job.settings.measures, job.settings.headline)
        evaluate_rows(model, weights, task, names, chosen).measured(task)
        adding_up = check_passes(network, inputs, dtype)
        x, pair = (e.normalise(e.x, dtype) for e in (chosen, two))
        with torch.no_grad():
            logits = model(weights, x)
            check_padding(task, logits, x, chosen.y)
            how, each = "of one example, ", logits.shape[1:]
            alone = sums_of(task, names, _checked(model(weights, pair[:1]), task, 1, each), two.y[:1])
            for rows in alone.values():
                added(rows)
        how = "in training, "
        of_two = _stepped(model, weights, job, two, each)
        how = "in training, of one example, "
        of_one = _stepped(model, weights, job, two.select(np.array([0])), each)
    except SettingError:
        raise
    except Exception as error:
        shape = " x ".join(map(str, train.shape))
        _check_places(model, task, train, _given(model, weights, chosen))
        _explain_tokens(error, model, train)
        _explain_step(error, model)
        if NotCopied.__name__ in str(error):
            raise SettingError(
                f"the forward of a network computes what follows its weights anew, and that of {model.name} reads what "
                f"was computed when it was made, {', '.join(model.computed)} ({first_line(error)}): compute it in "
                "forward, or register as a buffer what must stay"
            ) from error
        raise SettingError(
            f"model {model.name} and task {type(task).__name__} do not take the data, {shape} in {train.num_classes} "
            f"classes: {how}{type(error).__name__}: {error}; a model maps a batch of such examples to logits "
            f"(N, {train.num_classes}){_outputs(model, weights, chosen)} [FL-MODEL-003]"
        ) from error
    _check_places(model, task, train, logits)
    job.algorithm.requires.check_logits(type(job.algorithm).__name__, model.name, logits[0].numel())
    return Tried(of_two <= of_one, adding_up)


def _given(model: Model, weights: Weights, chosen: Examples) -> Tensor | None:
    """Return what a model gives of some examples; None where it fails, or gives no tensor."""
    with suppress(Exception), torch.no_grad():
        logits = model(weights, chosen.normalise(chosen.x, next(iter(weights.params.values())).dtype))
        return logits if isinstance(logits, Tensor) else None
    return None


def _outputs(model: Model, weights: Weights, chosen: Examples) -> str:
    """Return in words what a model gives of some examples; "" where it fails, or gives a logit for each class."""
    logits = _given(model, weights, chosen)
    if logits is None or (given := logits.shape[1:]) == (chosen.num_classes,):
        return ""
    return f", and this one to ({', '.join(map(str, ('N', *given)))})"


def _check_places(model: Model, task: Task, train: Examples, logits: Tensor | None) -> None:
    """Raise SettingError where an answer at a place has fewer logits than there are tokens, or classes of pixels."""
    kind = targets_of(task)
    if logits is None or kind not in ("tokens", "pixels"):
        return
    found = logits.shape[1 if kind == "pixels" else -1]
    if found < train.num_classes:
        each, remedy = {
            "tokens": ("token of the vocabulary", "or the vocabulary smaller"),
            "pixels": ("class of a pixel", "or give fewer classes"),
        }[kind]
        raise SettingError(
            f"a network answers with a logit for each {each}, num_classes = {train.num_classes}, got {found} of "
            f"{model.name}: make its head as large, {remedy}"
        )


def _explain_tokens(error: Exception, model: Model, train: Examples) -> None:
    """Raise SettingError where a pass fails by token ids: beyond a table, rounded, or in the place of numbers."""
    text = str(error)
    tables = {n: m.num_embeddings for n, m in model.skeleton().named_modules() if isinstance(m, nn.Embedding)}
    if train.has_tokens and isinstance(error, IndexError) and tables:
        row = int(train.x.flatten(1).amax(1).argmax())
        raise SettingError(
            f"token ids, and places of a sequence, are below the sizes of a network's tables, got ids up to "
            f"{int(train.x.max())} (example {row}) in sequences of {train.shape[0]} places, and {model.name} with "
            f"{', '.join(f'{n} of {size}' for n, size in tables.items())}: make the table as large as the vocabulary, "
            "or sequences shorter"
        ) from error
    if tables and train.x.is_floating_point() and not train.has_tokens and "indices" in text:
        raise SettingError(
            f"an embedding takes token ids, which are integers, got {train.x.dtype} for {model.name}: give "
            "from_arrays(x.astype(numpy.int32), y)"
        ) from error
    if isinstance(train.normalise, Tokens) and "dtype" in text and not tables:
        raise SettingError(
            f"integers (N, T) are token ids, which {model.name} would multiply (it has no embedding): give numbers as "
            f"from_arrays(x.astype(numpy.float32), y), got {train.x.dtype}"
        ) from error


def _stepped(model: Model, weights: Weights, job: Plan, examples: Examples, each: torch.Size) -> set[str]:
    """Take a training step on these examples, and return the counters of BatchNorm that it moves.

    `each`: the shape of an example's logits in evaluation.
    """
    task, optimiser, n = job.task, job.algorithm.local.optimiser, len(examples)

    def loss(weights: Weights, batch: Batch) -> tuple[Tensor, Weights]:
        logits, buffers = model.train(weights, batch)
        if not isinstance(logits, Tensor):
            raise TypeError(f"logits must be a tensor, not {type(logits).__name__}")
        value = objective(task, logits, batch, weights.params)
        _checked(logits, task, n, each)
        return value, replace(weights, buffers=buffers)

    dtype = next(iter(weights.params.values())).dtype
    one, rate = torch.tensor(1), torch.tensor(optimiser.lr, dtype=torch.float64)
    batches = Batches(
        x=examples.x, y=examples.y, examples=torch.arange(n), order=torch.arange(n)[None],
        mask=torch.ones(1, n, dtype=torch.bool), num_steps=one, num_examples=one * n, key=one * 0,
        notes=notes_of(task, examples.y, dtype), prepare=examples.normalise, dtype=dtype,
    )  # fmt: skip
    after = minimise(loss, weights, batches, optimiser, lr=rate).buffers
    counters = {name: b for name, b in after.items() if name.endswith("num_batches_tracked")}
    return {name for name, b in counters.items() if not torch.equal(b, weights.buffers[name])}


def _explain_step(error: Exception, model: Model) -> None:
    """Raise SettingError where a step fails by what the network is made of: checkpointed layers, sparse gradients."""
    if any(
        Path(frame.filename).match("torch/utils/checkpoint.py") for frame in traceback.extract_tb(error.__traceback__)
    ):
        raise SettingError(
            f"a network is computed as a function of its weights, which are gone where activation checkpointing "
            f"computes a layer again, and {model.name} uses it: leave torch.utils.checkpoint out (of models of Hugging "
            "Face, gradient_checkpointing_disable()), and lower batch_size where memory is short"
        ) from error
    if "sparse" in str(error).lower():
        layers = [name for name, layer in model.networks[0].named_modules() if getattr(layer, "sparse", False)]
        raise SettingError(
            f"optimisers take dense gradients, and {model.name} has sparse ones"
            + (f" of {', '.join(layers)}" if layers else "")
            + f": write sparse=False, or leave it out ({first_line(error)})"
        ) from error


def _checked(logits: Tensor, task: Task, count: int, each: torch.Size) -> Tensor:
    """Return the same logits; raise TypeError if their shape is not as elsewhere. Other tasks may want another."""
    if isinstance(task, ClassTask) and logits.shape != (count, *each):
        raise TypeError(f"logits must be {[count, *each]} as elsewhere, got {list(logits.shape)}")
    return logits
