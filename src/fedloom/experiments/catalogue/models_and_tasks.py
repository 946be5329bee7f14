"""Networks and tasks by the names that people type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from torch import nn

from fedloom.algorithms.shared.ldam import LDAM
from fedloom.core.choices import field_types
from fedloom.core.errors import SettingError
from fedloom.core.grammar import arguments, find
from fedloom.core.naming import by_python_name
from fedloom.core.task import Task, require_task
from fedloom.data import Examples, Inputs, Tokens
from fedloom.experiments.catalogue.algorithms_by_name import label
from fedloom.models import MODELS, Reads, build
from fedloom.models.sequences import PADDING
from fedloom.models.torchvision_networks import PREFIX
from fedloom.tables.preparation import preparation_of
from fedloom.tasks import SVM, Binary, Classification, Hinge, MultiLabel, NextToken, Regression
from fedloom.tasks.segmentation import Segmentation
from fedloom.wording import did_you_mean


@dataclass(frozen=True)
class NamedTask:
    """Task that has a name."""

    name: str
    make: Callable[..., Task]
    what: str
    """Its loss, for which networks it is, and its settings. Markdown."""

    @property
    def form(self) -> str:
        """Its name."""
        return self.name


TASKS: dict[str, NamedTask] = {
    task.name: task
    for task in (
        NamedTask(
            "classification", Classification,
            "cross-entropy; `class_weights=1,2,2`, `label_smoothing=0.1`, `focal=2`",
        ),
        NamedTask(
            "binary", Binary,
            "cross-entropy of one logit, for labels 0 and 1; of a network with two outputs the first is it. "
            "`threshold=0.3`, `threshold=validation`, `positive_weight=5`",
        ),
        NamedTask(
            "multi_label", MultiLabel,
            "binary cross-entropy of each of several labels, columns of 0 and 1; `positive_weights=1,5`",
        ),
        NamedTask(
            "regression", Regression,
            "squared error of [targets that are numbers](#regression), standardised; `error=absolute`, `error=huber`, "
            "`delta=1`, `standardise=false`",
        ),
        NamedTask(
            "next_token", NextToken,
            "cross-entropy of [the token at each place](text.md#next-token) of a sequence, for networks with logits of "
            "the vocabulary at each place",
        ),
        NamedTask(
            "segmentation", Segmentation,
            "cross-entropy of [the class of each pixel](segmentation.md), for networks that answer at each, such as "
            "`unet`; `error=dice`, `error=both`, `by_class=2`",
        ),
        NamedTask("hinge", Hinge, "hinge loss: labels 0 and 1, a network with one output such as `svm`"),
        NamedTask(
            "svm", SVM, "as `hinge`, summed over a batch, and a ridge on the weights (FedProx's authors)"
        ),
        NamedTask(
            "svm_mean", partial(SVM, reduction="mean", ridge=0.01),
            "as `hinge`, the mean over a batch, and a ridge on the weights (Ditto)",
        ),
        NamedTask(
            "ldam", LDAM,
            "[margins](../papers/docs/dense.md#ldam) by each client's label counts, "
            "for networks whose logits are scaled cosines",
        ),
        NamedTask(
            "ldam_drw", partial(LDAM, drw=0.8), "the same, classes weighted in the last fifth of local training"
        ),
    )
}  # fmt: skip


def models(names: str, train: Examples) -> dict[str, Callable[[], nn.Module]]:
    """Return builders of the architectures in a comma-separated list, by name; your own as `module:name`."""
    out: dict[str, Callable[[], nn.Module]] = {}
    for name in names.split(","):
        if name in out or label(name) in out:
            raise SettingError(f"each model is named once, got {names!r}; clients get them in turn")
        if name.partition("?")[0] in MODELS or name.startswith(PREFIX):
            out[name] = partial(build, name, tuple(train.shape), train.num_classes, _read(train))
        elif ":" in name:
            found = by_python_name(name, "model")
            if not callable(found):
                raise SettingError(f"model {name!r} must be a function or class that makes an nn.Module, got {found!r}")
            out[label(name)] = found
        else:
            raise SettingError(
                f"unknown model {name!r}{did_you_mean(name, MODELS)}; there are {', '.join(MODELS)}, "
                "those of torchvision as torchvision:NAME, and your own as module:name [FL-MODEL-005]"
            )
    return out


def _read(train: Examples) -> Reads:
    """Return what a network by name is made for beside the shape of an example."""
    how = train.normalise
    if isinstance(how, Tokens):
        if how.padding not in (PADDING, None):
            raise SettingError(
                f"networks by name take the id {PADDING} for padding, got {how.padding} in {train.name}: number tokens "
                "so, or name a network of your own as module:name"
            )
        places = not train.has_classes and not train.y.is_floating_point()
        return Reads(how.vocabulary or int(train.x.max()) + 1, places)
    if isinstance(how, Inputs):
        kinds = {part.name: part for part in how.parts}
        if [*kinds] != ["numbers", "categories"] or kinds["categories"].kind != "integers":
            raise SettingError(
                f"networks by name take one input, or the two numbers and categories, got {', '.join(kinds)} in "
                f"{train.name}: name them so, or name a network of your own as module:name"
            )
        ids = train.x[:, kinds["numbers"].size :]
        return Reads(categories=tuple(int(n) + 1 for n in ids.amax(0)))
    prepared = preparation_of(train)
    made = prepared and prepared.constants
    return Reads(words=tuple(map(len, made.words.values()))) if made else Reads()


def task(text: str) -> Task:
    """Return a task by its name in `TASKS`, with settings as in `regression?error=huber&delta=2`, or `module:name`."""
    name, question, settings = text.partition("?")
    if name in TASKS:
        return _with_settings(TASKS[name], settings) if question else TASKS[name].make()
    if ":" not in text:
        find("task", text, TASKS, behind="module:name")
    found = by_python_name(text, "task")
    found = found() if isinstance(found, type) else found
    require_task(found, f"task {text!r}")
    made: Task = found
    return made


def _with_settings(named: NamedTask, text: str) -> Task:
    """Make a task with the settings that are written behind its name, NAME=VALUE joined by &."""
    made = named.make()
    known = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}  # type: ignore[arg-type]
    kinds = {name: partial(_value, like=like, words=_words(made, name)) for name, like in known.items()}
    form = f"{named.name}?{'&'.join(f'{name}={_written(like)}' for name, like in known.items())}"
    given = arguments(f"task {named.name}", text, kinds, form)
    return dataclasses.replace(made, **given)  # type: ignore[type-var]


def _words(made: Task, name: str) -> tuple[str, ...]:
    """Return the words that a setting may be in the place of a number."""
    return tuple(word for kind in get_args(field_types(type(made))[name]) for word in get_args(kind))


def _written(value: Any) -> str:
    """Return a value as it is written behind a name."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "1,2"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(text: str, like: Any, words: tuple[str, ...]) -> Any:
    """Return a value as it is written, one of the words or of the kind of `like`."""
    if text in words:
        return text
    if isinstance(like, bool):
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else float(text)
    if isinstance(like, tuple):
        return tuple(map(float, text.split(",")))
    if isinstance(like, int):
        return int(text)
    return text if isinstance(like, str) else float(text)
