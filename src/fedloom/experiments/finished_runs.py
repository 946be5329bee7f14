"""`fedloom replay` and `export`: rounds and models of finished runs."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from fedloom.coordinator import Job
from fedloom.coordinator.directory import RunDirectory
from fedloom.core.task import targets_of
from fedloom.core.task_measures import measures_of
from fedloom.data import Examples
from fedloom.data.inputs import Inputs
from fedloom.display.terminal import Terminal, table
from fedloom.evaluate import evaluate_rows, measured
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.export import export as write_model
from fedloom.experiments.stored_experiments import open_experiment
from fedloom.experiments.trained_model import task_of, trained_model, validated_round
from fedloom.tables.preparation import Preparation, preparation_of


def replay(args: argparse.Namespace, console: Terminal) -> int:
    """Compute a past round again, and print facts of each client's model after its local training."""
    job = open_experiment(args.directory, args, console).job()
    round = validated_round(args.directory) if args.round == "best" else args.round
    replayed = job.replay(args.directory, round)
    test, out = job.federation.at(round - 1).test, table(f"Local models of round {round}")
    late = set(replayed.taken.values()) - {round - 1}
    for heading in ("client", *["from the model\nof round"] * bool(late)):
        out.add_column(heading, justify="right")
    p = replayed.population
    main = measures_of(p.task)[p.measures[0]]
    whole = "all classes" if targets_of(p.task) == "classes" else "the test set"
    for heading in ("examples", "distance\nmoved", *[f"{main.title} on\n{whole}"] * (test is not None)):
        out.add_column(heading, justify="right")
    for client, trained in replayed.trained().items():
        name = p.assignment[client] if len(p.assignment) == p.num_clients else next(iter(p.models))
        model = p.models[name]
        version = replayed.taken.get(client, round - 1)
        start = job.algorithm.global_models(replayed.models[version], p.models).get(name)
        moved = "-" if start is None else f"{float((trained.params - start.params).sq_norm()) ** 0.5:.4f}"
        found = [] if test is None else measured([evaluate_rows(model, trained, p.task, (main.name,), test)], p.task)
        sizes = job.federation.at(version).partition.sizes
        who, size = ("all", sizes.sum()) if job.trainees.in_one_place else (str(client), sizes[client])
        told = ["undefined" if math.isnan(v := values[main.name]) else f"{v:.4f}" for values in found]
        out.add_row(who, *[str(version)] * bool(late), f"{int(size):,}", moved, *told)
        if args.save is not None:
            write_model(model, trained, Path(args.save, f"client-{client}.safetensors"))
    console.print(out)
    verdict = "the same cohort, losses and bytes as in the log"
    if round in RunDirectory(args.directory).checkpoints.rounds():  # a difference to it is an error
        verdict += f", and the same bits as the checkpoint of round {round}"
    console.print(verdict)
    return 0


def export(args: argparse.Namespace, console: Terminal) -> int:
    """Write the global model of a run, or that of one client, to a file; or its adapter to a folder."""
    experiment = open_experiment(args.directory, args, console)
    job = experiment.job()
    found = trained_model(args.directory, job, client=args.client, at=args.at, model=args.model)
    train = job.federation.train
    facts = {
        "algorithm": type(job.algorithm).__name__,
        "round": str(found.round),
        "model": found.name,
        "whose": found.whose,
        **({"classes": json.dumps(train.classes)} if train.classes else {}),
    }
    of_table = preparation_of(train)
    if of_table is not None and (texts := of_table.text) is not None:  # by which new texts become ids
        facts["text"] = json.dumps(texts.described())
    onnx = Path(args.file).suffix == ".onnx" and not args.peft
    if onnx and (threshold := task_of(found, args.directory)[1]) is not None:
        facts["threshold"] = repr(threshold)
    prepared, said = _inside(experiment, job) if onnx else (None, "")
    path = write_model(
        found.model,
        found.weights,
        args.file,
        example=tuple(train.shape) if onnx else None,
        input_dtype=train.x.dtype if onnx else None,
        normalise=train.normalise if onnx else None,
        preparation=prepared,
        task=job.task if onnx else None,
        format="peft" if args.peft else None,
        metadata=None if args.peft or Path(args.file).suffix in (".pt", ".pth") else facts,
        overwrite=args.overwrite,
    )
    best = ", the best on validation data" * (args.at == "best")
    text = f"{found.whose} ({found.name}) after round {found.round}{best}: {path}"
    console.print(text)
    if said:
        console.print(said)
    return 0


def _inputs(train: Examples) -> str:
    """Return a sentence about the inputs of an ONNX file of a network that is given several; "" of one."""
    if not isinstance(train.normalise, Inputs):
        return ""
    parts = [f"{name} [{', '.join(map(str, ('B', *shape)))}]" for name, shape, _ in train.normalise.parts]
    return f"the file takes the inputs by their names: {', '.join(parts)}"


def _inside(experiment: Experiment, job: Job) -> tuple[Preparation | None, str]:
    """Return the preparation that an ONNX file of a run can hold, and a sentence about its inputs."""
    if experiment.data.normalise == "places":
        return None, (
            "the file takes inputs as the run standardised them, each place by itself (normalise = places), which ONNX "
            "does not hold"
        )
    preparation = preparation_of(job.federation.train)
    if preparation is None:
        return None, _inputs(job.federation.train)
    if preparation.text is not None:
        return None, "the file takes token ids; `text` of its metadata says which ids the tokens of a text have"
    if (columns := preparation.constants) is None:
        return None, "the file takes features as the run's transformer makes them, which ONNX does not hold"
    numbers = f"{len(columns.numbers)} columns of numbers as x" if columns.numbers else ""
    words = f"{len(columns.words)} columns of words as words, each by its place in its list" if columns.words else ""
    listed = " and ".join(filter(None, (numbers, words)))
    return preparation, f"the file takes columns as the table has them: {listed}; its metadata name them in order"
