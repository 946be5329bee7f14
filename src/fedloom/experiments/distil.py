"""`fedloom distil`: teach a student what models know that were trained elsewhere, without anybody's examples."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.coordinator import History, check_free
from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.core.model import Model
from fedloom.display.terminal import Terminal, table
from fedloom.experiments import catalogue
from fedloom.experiments.bought_models import BoughtModel, BoughtModels
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.shown_runs import train
from fedloom.sources.constants import NORMALISE
from fedloom.wording import some_of

EPOCHS = {"feddf": 50}  # by default; of others:
_EPOCHS = 200
_FIXED = "run.rounds", "run.seed", "run.device", "run.engine", "run.cohort_size", "model", "algorithm"
_PUBLIC = "data.public", "data.public_labels"  # how many examples, and whether some may choose the student


def distil(args: argparse.Namespace, console: Terminal) -> int:
    """Read the models, teach the student, and print how good each model, all of them and the student are."""
    check_free(Path(args.out))
    experiment, models = asked(args)
    job = experiment.job()
    job.check()
    networks = job.population.models
    for name, model in zip(models.names, models.models, strict=True):
        console.print(f"{name}: {model.network} ({networks[model.network].counted}), SHA-256 {model.sha256}")
    student = experiment.settings[args.method]["student"]
    console.print(f"student: {student} ({networks[student].counted}), taught by {args.method}")
    try:
        history = train(args.method, job, console, Path(args.out))
    except KeyboardInterrupt:
        console.print(f"what was written is kept in {args.out}: fedloom resume {args.out} continues")
        raise
    if history.settings and job.federation.test is not None:
        console.print(accuracies(history, models, student))
    console.print(f"settings, metrics and timing: {args.out}; fedloom export {args.out} FILE writes the student")
    return 0


def asked(args: argparse.Namespace) -> tuple[Experiment, BoughtModels]:
    """Return the run that a command line asks for, and the models in it, each of which was read and tried.

    Raises:
        SettingError: something is not as it must be; says what.
        CodecError: a file of weights is damaged or does not fit its network.
    """
    if (args.method == "feddf") != (args.public is not None):
        raise SettingError(
            f"feddf learns from public examples and the other methods make their own, got --method {args.method} "
            f"with --public {args.public}: name feddf and a source, or neither"
        )
    written = [BoughtModel.written(text) for text in args.models]
    if len(written) < 2:
        warn(f"an ensemble has several models, got {args.models[0]} alone: the student imitates it", SettingWarning)
    raw = BoughtModels(tuple(written), shape_of(args.shape), args.classes, normalise_of(args.normalise), args.test)
    words = list(dict.fromkeys([*(model.network for model in written), args.student]))
    blank = raw.blank()
    made = catalogue.models(",".join(words), blank)
    networks = {name: Model(make, name=name) for name, make in made.items()}
    names = dict(zip(words, networks, strict=True))
    tried = tuple(
        dataclasses.replace(model, network=names[model.network]).tried(
            networks[names[model.network]], raw.shape, raw.num_classes
        )
        for model in written
    )
    if len({model.sha256 for model in tried}) < len(tried):
        same = [m.file for m in tried if sum(m.sha256 == other.sha256 for other in tried) > 1]
        raise SettingError(f"each model counts once, got the same bytes in {some_of(same, 4)}: name one of them")
    models = dataclasses.replace(raw, models=tried)
    return _experiment(args, models, ",".join(words), names[args.student]), models


def _experiment(args: argparse.Namespace, models: BoughtModels, networks: str, student: str) -> Experiment:
    count, method = len(models.models), args.method
    epochs = EPOCHS.get(method, _EPOCHS) if args.epochs is None else args.epochs
    settings: dict[str, Any] = {
        "algorithm": method,
        "model": networks,
        "data.source": models.source,
        "data.normalise": models.normalise,
        "data.partition": "natural",
        "data.clients": count,
        "data.test_fraction": 0.0,
        "run.rounds": epochs if method == "feddf" else 1 + epochs,
        "run.cohort_size": count,
        "run.engine": "loop",
        "run.seed": args.seed,
        "run.device": args.device,
        f"{method}.student": student,
    }
    if args.public is not None:
        settings |= {"data.public_source": args.public}
    return Experiment().with_all(settings | own_settings(args.set, method))


def own_settings(pairs: Sequence[str], method: str) -> dict[str, str]:
    """Return the settings of --set by their whole names; a bare name is one of the method.

    Raises:
        SettingError: it is not NAME=VALUE, or what the command says itself.
    """
    out = dict[str, str]()
    for pair in pairs:
        name, equals, value = pair.partition("=")
        key = name if Experiment.knows(name) or name.startswith(f"{method}.") else f"{method}.{name}"
        if not (equals and name and value):
            raise SettingError(f"--set takes NAME=VALUE, got {pair!r}: write as in --set T=4")
        fixed = key in _FIXED or key.startswith(("data.", "clients.")) or key == f"{method}.student"
        if fixed and key not in _PUBLIC:
            raise SettingError(
                f"--set is for settings of {method} and of the run that this command does not make itself, got "
                f"{pair!r}: fedloom distil --help lists the flags"
            )
        out[key] = value
    return out


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape of an example, as in 1x28x28.

    Raises:
        SettingError: it is none.
    """
    parts = text.split("x")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() and 0 < int(part) <= 1 << 20 for part in parts):
        raise SettingError(
            f"--shape is that of an example, channels, height and width, got {text!r}: write as in 1x28x28"
        )
    return tuple(map(int, parts))


def normalise_of(text: str) -> str:
    """Return means and standard deviations as `data.normalise` has them, those of a source by its name.

    Raises:
        SettingError: there is no such source.
    """
    if text in NORMALISE:
        known = NORMALISE[text]
        return "/".join(",".join(map(repr, values)) for values in (known.mean, known.std))
    if "/" not in text:
        raise SettingError(
            f"--normalise says how the models' inputs were made, MEANS/STDS by channel or {', '.join(NORMALISE)}, got "
            f"{text!r}: write as in 0.1307/0.3081, 0/1 of values from 0 to 1 as they are"
        )
    return text


def accuracies(history: History, models: BoughtModels, student: str) -> Any:
    """Return a table of each model's headline on the test examples, of all together, and of the student.

    Args:
        history: of the run.
        models: its models.
        student: name of its network.
    """
    main, first = history.headline, history.metrics[1]
    alone: Mapping[str, float | None] = first.get(f"upload_{main.name}") or {}
    out = table(f"{main.title} on {models.test}")
    out.add_column("model")
    out.add_column("network")
    out.add_column(main.title, justify="right")
    for k, (name, model) in enumerate(zip(models.names, models.models, strict=True)):
        out.add_row(name, model.network, _number(alone.get(str(k))))
    out.add_row("all together", "", _number(first.get(f"ensemble_{main.name}")))
    out.add_row("student", student, _number(history.metrics[-1].get(f"global_{main.name}")))
    return out


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
