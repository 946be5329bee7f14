"""Warn of runs that teach nothing: token ids scaled away, unscaled features, labels that cannot be learnt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedloom.core.batch import probe
from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.network_inputs import MASK
from fedloom.core.network_makers import own_defaults
from fedloom.core.task import Task, loss_of, notes_of
from fedloom.core.types import Params, Weights, replace
from fedloom.data import Examples, Federation, Inputs, Tokens
from fedloom.data.rare_classes import RARE, rare_classes
from fedloom.tasks import Binary, Classification, ClassTask
from fedloom.wording import some_of

_ROWS = 10_000  # of which the scales of features are taken
_TRIED = 16  # which a model is tried on
# Gradient descent on one feature of this root mean square leaves the usual learning rate of 0.01 at the edge of
# stability: the curvature of cross-entropy is up to 900 / 4, and 2 / 225 < 0.01.
_LARGE = 30.0
_ID = re.compile(r"(.*[ _.-])?id", re.IGNORECASE)  # what a column that numbers its rows is called
_MOST = 0.8  # of the examples in one class: beyond, accuracy says little
_LAYERS = {
    *("linear", "matmul", "__matmul__", "mm", "conv1d", "conv2d", "conv3d", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    *("embedding", "embedding_bag", "multi_head_attention_forward"),
    *("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"),
}


@own_defaults()
def check_plausible(
    federation: Federation,
    models: Iterable[Model],
    task: Task,
    headline: str = "accuracy",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Refuse or warn of what is legal by its types, but cannot be meant.

    Args:
        federation: the data of a run.
        models: its networks.
        task: loss and measures.
        headline: the measure of the run.
        dtype: that of its numbers.

    Raises:
        SettingError: a model looks up token ids that normalisation has changed, or a sequence has no token.
    """
    if isinstance(task, ClassTask):
        _check_labels(federation, task, headline)
    _check_sequences(federation)
    _check_held_out(federation)
    _check_layout(federation.train)
    _check_columns(federation)
    wanting = [_wants_scale(model, federation.train, task, dtype) for model in models]
    if any(wanting):
        _check_scales(federation.train)


def _check_sequences(federation: Federation) -> None:
    """Refuse sequences without a token."""
    for part in (federation.train, federation.test, federation.public):
        if part is None or part.remote is not None:
            continue
        if isinstance(part.normalise, Tokens) and (padding := part.normalise.padding) is not None:
            empty = torch.eq(part.x.flatten(1), padding).all(1)
            told = f"none but padding, {padding},"
            remedy = "write normalise=fedloom.data.Tokens(padding=None)"
        elif isinstance(part.normalise, Inputs) and MASK in [each.name for each in part.normalise.parts]:
            empty = (part.normalise.unpack(part.x)[MASK].flatten(1) == 0).all(1)
            told, remedy = f"{MASK} 0 everywhere", f"give {MASK} 1 for each token"
        else:
            continue
        if bool(empty.any()):
            raise SettingError(
                f"a sequence has a token at least, got {told} in example {int(empty.nonzero()[0])} of {part.name}: "
                f"leave such examples out, or {remedy}"
            )


def check_batches_of_one(sizes: npt.NDArray[np.int64], local: Local) -> None:
    """Warn where clients have batches of one, in which BatchNorm measures nothing. `sizes`: their examples, [K]."""
    norms = "or take a network with GroupNorm or LayerNorm"
    if local.batch_size == 1:
        _warn(
            "in a batch of one example BatchNorm has the same output whatever the example, and its running statistics "
            f"stay as they began, got batch_size = 1: set 2 or more, {norms} [FL-MODEL-007]"
        )
        return
    B = local.batch_size
    short = sizes[(sizes % B == 1) & (local.steps is None or local.steps >= -(-sizes // B))]
    if len(short):
        _warn(
            "running statistics of BatchNorm leave out a batch of one example, which has no variance, got a last batch "
            f"of one at {len(short):,} of {len(sizes):,} clients, such as {short[0]:,} examples in batches of {B}: set "
            f"another batch_size, {norms}"
        )


def _check_labels(federation: Federation, task: Task, headline: str) -> None:
    counts = np.bincount(federation.train.y.cpu().numpy()[federation.partition.indices], minlength=1)
    seen = np.flatnonzero(counts)
    if len(seen) == 1:
        _warn(
            f"all training examples have label {_named(federation, seen)}: every model learns to say so; "
            "give examples of two classes [FL-DATA-015]"
        )
        return
    rare, share = rare_classes(counts), float(counts.max() / max(1, counts.sum()))
    if share > _MOST and headline == "accuracy":
        most = _named(federation, [counts.argmax()])
        _warn(
            f"accuracy says little where one class has most examples, got {share:.1%} of those that train in class "
            f"{most}, so that a model which always says so is right that often, and accuracy compares methods and "
            f"chooses rounds: {_other_headline(len(seen))}, and look at class_accuracy [FL-DATA-018]"
        )
    if len(rare):
        shares = some_of((f"{_named(federation, [c])} ({counts[c] / counts.sum():.2%})" for c in rare), 8)
        _warn(
            f"a rare class is hardly learnt, got fewer than {RARE / len(seen):.2%} of the training examples (a tenth "
            f"of an equal share) of class {shares}: {_remedy(task)}"
            + f"; {_other_headline(len(seen))}"
            * (headline == "accuracy" and share <= _MOST)
        )
    if federation.test is not None:
        unseen = ~np.isin(tested := federation.test.y.cpu().numpy(), seen)
        if unseen.any():
            _warn(
                f"no client has training examples of class {_named(federation, np.unique(tested[unseen]))}, which "
                f"{unseen.sum():,} of the {len(tested):,} test examples have, and no model can learn: number the "
                "labels of both alike, or leave these examples out [FL-DATA-017]"
            )


def _other_headline(classes: int) -> str:
    """Return how another measure than accuracy becomes the headline."""
    names = ("auc", "average_precision", "balanced_accuracy") if classes == 2 else ("balanced_accuracy", "macro_f1")
    return f"make another measure the headline (--headline {names[0]}; or {', '.join(names[1:])})"


def _remedy(task: Task) -> str:
    """Return what helps rare classes."""
    if isinstance(task, Binary):
        return "let it count for more (positive_weight), and look at recall and precision (--measures recall,precision)"
    weigh = "let it count for more (class_weights, or focal = 2), and " if isinstance(task, Classification) else ""
    return f"{weigh}look at recall by class (class_accuracy) and at --measures balanced_accuracy,macro_f1"


def _check_held_out(federation: Federation) -> None:
    if federation.local_test is None:
        return
    holding = int((federation.local_test.sizes > 0).sum())
    if 2 * holding < federation.num_clients:
        _warn(
            f"personal accuracy is measured on what clients hold out, got {holding} of {federation.num_clients} "
            "clients that hold anything out: give fewer clients more examples each, or a larger test_fraction (0 where "
            "it is not wanted)"
        )


def _check_layout(train: Examples) -> None:
    if len(train.shape) == 3:
        channels, height, width = train.shape
        if width in (1, 3) and channels > 3 and height > 3:
            _warn(
                f"images are (channels, height, width), got {channels} channels of {height} x {width}, which look like "
                "(height, width, channels): pass x.transpose(0, 3, 1, 2) to from_arrays"
            )


def _check_columns(federation: Federation) -> None:
    """Warn of words in a table that make too many columns, and of numbers that only count its rows."""
    train, rows = federation.train, len(federation.partition.indices)
    if len(train.shape) != 1 or not train.columns:
        return
    columns = {name: train.x[:, i].cpu().numpy() for i, name in enumerate(train.columns) if _ID.fullmatch(name)}
    if train.preparation is not None:
        frame, common = train.preparation.frame, getattr(train.preparation, "common", None)
        kept = getattr(common, "words", {})  # rows may be elsewhere
        words = {
            str(name): len(kept[name]) if name in kept else frame[name].nunique()
            for name in frame.columns
            if frame[name].dtype.kind == "O"
        }
        columns = {name: frame[name].to_numpy() for name in frame.columns if name not in words and _ID.fullmatch(name)}
        made = sum(words.values()) if kept else train.shape[0] - (len(frame.columns) - len(words))  # without masks
        if words and made > rows / 3:
            most = max(words, key=lambda name: words[name])
            _warn(
                f"columns made of words are hardly learnt where there are few rows of each, got {made} for {rows} rows "
                f"that train, most of them from {most!r} ({words[most]} words): leave it out (drop={most}), or group "
                "its words [FL-TABLE-010]"
            )
    for name, values in columns.items():
        if len(values) > 1 and len(np.unique(values)) == len(values) and bool((values == np.round(values)).all()):
            _warn(f"a number of each row says nothing, got {name!r}, different in all: drop={name} [FL-TABLE-011]")


def _wants_scale(model: Model, train: Examples, task: Task, dtype: torch.dtype) -> bool:
    """Return whether features of any scale may reach the first layer of a model that learns from small ones alone.

    So it is where no layer is seen, or where the first one is given a number above 30 and does not normalise.

    Warns where the task takes the model's answers for something else than they are, and of tensors that learn nothing.

    Raises:
        SettingError: it looks up token ids that normalisation has changed.
    """
    flat = train.x.flatten(1)
    largest = flat.amax(1).argmax() if flat.shape[1] else torch.tensor(0)
    rows = torch.cat([_spread(len(flat), _TRIED), largest.view(1).cpu()]).to(flat.device)
    stored = train.x[rows].cpu()
    inputs = train.normalise(stored, dtype)
    model = model.bind(0, dtype)
    weights = model.init(0, dtype)
    with torch.no_grad():
        answers = model(weights, inputs)  # which may try layouts first, on empty images
        with _Watch() as watch:
            model(weights, inputs)
        _check_answers(model, answers, inputs, train.y[rows].cpu(), task)
    if train.remote is None:  # whose inputs are blank
        _check_factors(model, weights, inputs, train.y[rows].cpu(), task)
    for name, given in watch.calls:
        if name.startswith("embedding") and _same(given, inputs):
            if not _same(given, stored):
                raise SettingError(
                    f"token ids must reach the embedding of {model.name} as they are stored, got {stored.dtype} ids "
                    f"that are normalised ({stored.max():g} becomes {inputs.max():g}): call "
                    "from_arrays(x, y, normalise=fedloom.data.Tokens()) [FL-DATA-019]"
                )
            return False
    if not watch.calls:
        return True
    if isinstance(train.normalise, Inputs):
        return True  # which of them its first layer is given is not known
    name, given = watch.calls[0]
    return not name.endswith("_norm") and bool(given.abs().max() > _LARGE)


def _check_scales(train: Examples) -> None:
    rows = _spread(len(train), _ROWS).to(train.x.device)
    columns, names = train.normalise(train.x[rows], torch.float64), list(train.columns)
    if isinstance(how := train.normalise, Inputs):  # ids and truth values have no scale
        numbers = {part.name: part.size for part in how.parts if part.kind == "numbers"}
        if not numbers:
            return
        columns = torch.cat([how.unpack(columns)[name].flatten(1) for name in numbers], 1)
        names = [f"{name}[{i}]" for name, size in numbers.items() for i in range(size)]
    columns = columns.transpose(0, 1).flatten(1)
    mean, std = columns.mean(1), columns.std(1, correction=0)
    size = (mean.square() + std.square()).sqrt()
    large = [int(i) for i in size.argsort(descending=True) if size[i] > _LARGE]
    if large:
        what = "channel" if train.x.dim() > 2 else "column"

        def said(i: int) -> str:
            return f"{names[i] if names else i} (mean {mean[i]:.3g}, deviation {std[i]:.3g})"

        low, high = train.x.aminmax()
        if train.x.dim() == 2:
            remedy = (
                "(subtract the mean of the training examples, divide by the deviation; of a table: prepare=standard)"
            )
        elif low >= 0 and high <= 255:
            remedy = (
                "(pixels of 0 to 255 as uint8, or from_arrays(x, y, normalise=fedloom.data.Normalise(scale=1/255)))"
            )
        else:
            remedy = "(from_arrays(x, y, normalise=fedloom.data.Normalise(mean, std)), by channel)"
        _warn(
            f"features of sizes far from 1 are hardly learnt, got {what} {some_of(large, 5, say=said)}: standardise "
            f"them {remedy} [FL-DATA-016]"
        )


def _check_answers(model: Model, answers: Tensor, x: Tensor, y: Tensor, task: Task) -> None:
    """Warn where a task takes the cross-entropy of what are probabilities already."""
    with _Watch({"cross_entropy"}) as watch:
        task.loss(answers, probe(x, y))
    for _, given in watch.calls:
        if (
            given.ndim == 2
            and given.shape[1] > 1
            and bool((given >= 0).all() & ((given.sum(1) - 1).abs() < 1e-3).all())
        ):
            _warn(
                f"cross-entropy is of logits, got probabilities from {model.name} (none negative, the sum of each "
                "example 1), by which it hardly learns: leave out the Softmax at its end [FL-MODEL-006]"
            )


def _check_factors(model: Model, weights: Weights, x: Tensor, y: Tensor, task: Task) -> None:
    """Warn of trained tensors that never move, because a frozen one that is zero multiplies them.

    So it is with one factor of an adapter B A beside the other one, under whatever names. Told by gradients: they are
    zero, and are not with other values in the place of the frozen zeros.
    """
    zeros = [n for n, t in model.frozen.items() if t.is_floating_point() and not t.any()]
    batch = probe(x, y, notes_of(task, y, x.dtype))

    def still(*replaced: str) -> set[str]:
        """Return the trained tensors with gradient 0, with random values in the place of some frozen tensors."""
        rng = torch.Generator().manual_seed(0)
        other = {n: torch.randn(model.frozen[n].shape, generator=rng) for n in replaced}
        params = Params({n: p.detach().requires_grad_() for n, p in weights.params.items()})
        logits, _ = model.with_frozen(Params({**model.frozen, **other})).train(replace(weights, params=params), batch)
        found = torch.autograd.grad(loss_of(task, logits, batch), list(params.values()), allow_unused=True)
        return {n for n, g in zip(params, found, strict=True) if g is not None and not g.any()}

    if zeros and (without := still()) and (stuck := without - still(*zeros)):
        causes = set(zeros)
        for name in zeros:  # those without which some would still learn nothing
            if not stuck & still(*causes - {name}):
                causes.discard(name)
        _warn(
            f"a tensor that a frozen one of zeros multiplies learns nothing, got {some_of(sorted(stuck), 5)} of "
            f"{model.name} beside {some_of(sorted(causes), 5)}: train both (of an adapter: factors='both'), or "
            "let the frozen one begin with other values"
        )


class _Watch(TorchFunctionMode):
    """Notes what every layer, or other functions of these names, is given."""

    def __init__(self, names: Set[str] = _LAYERS) -> None:
        super().__init__()
        self.names = names
        self.calls: list[tuple[str, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.names and args and isinstance(args[0], Tensor):
            self.calls.append((name, args[0].detach().clone()))  # what comes next may write on it
        return func(*args, **(kwargs or {}))


def _same(ids: Tensor, x: Tensor) -> bool:
    return ids.numel() == x.numel() and torch.equal(ids.flatten().long(), x.flatten().long())


def _spread(length: int, most: int) -> Tensor:
    """Return the numbers of at most `most` of `length` rows, evenly spaced."""
    return torch.arange(0, length, -(-length // most))


def _named(federation: Federation, labels: Any) -> str:
    """Return a few classes by their names: in a table with labels 1, 2, 3 the first is 1, not 0."""
    names = federation.train.classes or range(federation.num_classes)
    return some_of(labels, 8, say=lambda label: str(names[label]))


def _warn(message: str) -> None:
    warn(message, SettingWarning)
