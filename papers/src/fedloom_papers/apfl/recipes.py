"""Recipes for the experiments of APFL (Ni, Shen, Zhang, 2022): what was published, and the settings that we take.

Table 2 prints mean accuracies over lambda; of the figures only gains over FedAvg are known. No code was released.
docs/apfl.md says which setting comes from where.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedloom.coordinator import RunSettings
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_sections import DataSettings
from fedloom_papers.reproduction.recipe import Method, Recipe, same

ABOUT = {
    "apfl-comparison": "Figure 1: APFL, its baselines and the IID reference on four data sets",
    "apfl-lambda": "Table 2: what remains of importance when it is measured anew",
    "apfl-epochs": "Figure 3: local epochs; on MNIST ours",
    "apfl-rate": "Figure 3: local rates",
    "apfl-ewc": "what decomposition and consolidation add to FedAvg, each and together; ours",
}
LAMBDAS = (0.0, 0.25, 0.5, 0.75, 1.0)
EPOCHS = (1, 5, 10, 20)
STARTS = (0, 5)  # z: rounds before decomposition begins, other than the paper's 2
RATES = (1e-4, 1e-3, 1e-2, 1e-1)
BASELINES = ("fedavg", "fedprox", "fedcurv_ni", "fedmeta")
FIGURE_3 = {"apfl-epochs": ("letters", "cifar10"), "apfl-rate": ("mnist", "letters")}
"""The data sets over which Figure 3 varies each, beside FedAvg and FedProx alone."""


class Images(NamedTuple):
    """One data set: its data, its model, the rate, the rounds, the thresholds of a plateau, and what is doubtful."""

    data: dict[str, Any]
    model: str
    lr: float
    rounds: int
    plateau: tuple[float, float]
    task: str = "classification"
    caveat: str | None = None
    comparable: bool = True


_LETTERS = "EMNIST's letters a to j in the place of NIST's, which the paper has"
_VEHICLE: dict[str, Any] = {"partition": "natural", "test_fraction": 0.25, "partition_seed": 0}


def _vehicle(source: str, caveat: str | None = None) -> Images:
    data = {**_VEHICLE, "source": source}
    return Images(data, "svm", 0.03, 20, (700.0, 400.0), "svm", caveat, caveat is None)


def _letters(sampling: str, caveat: str) -> Images:
    data = {
        "source": "emnist_letters_aj", "merge": True, "partition": f"lognormal_sizes:3:{sampling}", "clients": 200,
        "partition_seed": 299, "test_fraction": 0.1,
    }  # fmt: skip
    return Images(data, "logistic", 0.003, 200, (1.0, 0.5), caveat=caveat)


# Of some hundred partition seeds those whose sizes are nearest to the printed ones.
DATA = {
    "vehicle": _vehicle("vehicle_whole"),
    "vehicle-part": _vehicle("vehicle", "the published training part, 1,860 of 43,695 examples: not comparable"),
    "vehicle-like": _vehicle("vehicle_like", "made-up data of the shape of Vehicle: not comparable"),
    "mnist": Images(
        {
            "source": "mnist", "merge": True, "normalise": "places", "partition": "lognormal:2", "clients": 1000,
            "partition_seed": 64, "test_fraction": 0.1,
        },
        "logistic", 0.03, 150, (1.0, 0.5),
    ),
    "letters": _letters("disjoint", _LETTERS),
    "letters-overlapping": _letters(
        "overlapping", f"{_LETTERS}; clients share examples, by a mistake of the published sampler"
    ),
    "cifar10": Images(
        {
            "source": "cifar10_grey", "partition": "lognormal:1.25:5:10", "clients": 100, "partition_seed": 110,
            "test_fraction": 0.2,
        },
        "apfl_cnn", 0.01, 100, (1.0, 0.2),
    ),
}  # fmt: skip

# Mean test accuracy over all rounds, %: Table 2 by data set and local epochs, over lambda; gains of APFL over FedAvg.
TABLE_2 = {
    ("vehicle", 5): (88.65, 88.69, 88.67, 88.71, 88.59),
    ("vehicle", 20): (88.29, 88.24, 88.22, 88.31, 88.32),
    ("mnist", 5): (84.62, 84.66, 84.78, 84.93, 85.08),
    ("mnist", 20): (84.81, 84.92, 85.16, 85.42, 85.67),
}
GAINS = {"vehicle": 5.41, "mnist": 6.01, "letters": 30.42, "cifar10": 10.26}


def apfl(images: Images, **own: Any) -> Method:
    """Return APFL with the paper's settings, except for those that are given."""
    mu_sigma = dict(zip(("delta_mu", "delta_sigma"), images.plateau, strict=True))
    return Method("apfl_ni", {"mu": 1.0, "lam": 1.0, "window_loss": "global_all_clients", **mu_sigma, **own})


def methods(name: str) -> dict[str, Method]:
    """Return the rows of the comparison on a data set."""
    images, data = DATA[name], name.partition("-")[0]
    best = data in ("vehicle", "cifar10")  # where it is published above the reference too
    centralised = Method(
        "centralised",
        {},
        {"local.epochs": 1, "run.cohort_size": images.data.get("clients", 23)},
        () if best else ("fedavg",),
        "the IID reference: a round has the steps of an epoch of every client, a little more than of the pooled data",
    )
    adapted = {"alpha": images.lr, "beta": 0.01}
    # With the sum over all of a client's examples, in place of that over a batch, these rates would be too large.
    mean = {"task": "svm_mean"} if images.task == "svm" else {}
    inner = "; of mean losses" if mean else ""
    return {
        "fedavg": Method("fedavg"),
        "fedprox": Method("fedprox", {"mu": 1.0}),
        "fedcurv_ni": Method("fedcurv_ni", {"mu": 1.0}),
        "fedmeta": Method(
            "fedmeta", adapted, mean, caveat=f"its inner loop is not said: one step on all support examples{inner}"
        ),
        "apfl_ni": dataclasses.replace(apfl(images), above=(*BASELINES, "iid") if best else BASELINES),
        "iid": centralised,
        "fedmeta-first": Method("fedmeta", {**adapted, "order": "first"}, mean, variant=True),
        "per_fedavg": Method("per_fedavg", adapted, mean, variant=True),
        "per_fedavg-hf": Method("per_fedavg", {**adapted, "form": "hf"}, mean, variant=True),
        "fedcurv": Method("fedcurv", {"lam": 1.0}, variant=True, caveat="FedCurv as its own paper has it"),
        **{f"apfl_ni-z{z}": dataclasses.replace(apfl(images, z=z), variant=True) for z in STARTS},
        "apfl_ni-literal": dataclasses.replace(apfl(images, decomposition="paper_literal"), variant=True),
    }


def recipes() -> dict[str, list[Recipe]]:
    """Return the recipes of each table; tables that share a cell share its runs."""
    made = {
        "apfl-comparison": [r for name in DATA for r in _rows("apfl-comparison", name, name, methods(name))],
        "apfl-lambda": list(_lambda()),
        "apfl-epochs": list(_sweep("apfl-epochs", ("mnist", "letters", "cifar10"), "local.epochs", "e", EPOCHS)),
        "apfl-rate": list(_sweep("apfl-rate", ("mnist", "letters"), "local.lr", "lr", RATES)),
        "apfl-ewc": list(_ewc()),
    }
    places: dict[str, str] = {}
    for r in (r for table in made.values() for r in table):
        places.setdefault(same(r.experiment), r.place)
    return {
        table: [dataclasses.replace(r, place=places[same(r.experiment)]) for r in found]
        for table, found in made.items()
    }


def _lambda() -> Iterator[Recipe]:
    for name in ("vehicle", "vehicle-part", "vehicle-like", "mnist"):
        for epochs in (5, 20):
            rows = {f"apfl_ni-{lam:g}": apfl(DATA[name], lam=lam) for lam in LAMBDAS}
            yield from _rows("apfl-lambda", f"{name}-e{epochs}", name, rows, {"local.epochs": epochs})


def _sweep(table: str, names: tuple[str, ...], key: str, short: str, values: tuple[float, ...]) -> Iterator[Recipe]:
    for name in names:
        for value in values:
            chosen = {row: m for row, m in methods(name).items() if row in (*BASELINES, "apfl_ni")}
            if key == "local.lr":  # FedMeta adapts with it
                chosen["fedmeta"] = Method("fedmeta", {"alpha": value, "beta": 0.01})
            else:  # of which it has none: one run for every column
                same_run = f"{chosen['fedmeta'].caveat}; it has no local epochs, so its run is that of every column"
                chosen["fedmeta"] = dataclasses.replace(chosen["fedmeta"], run={key: 5}, caveat=same_run)
            above = ("fedavg", "fedprox") if name in FIGURE_3[table] else ()
            chosen["apfl_ni"] = dataclasses.replace(chosen["apfl_ni"], above=above)
            yield from _rows(table, f"{name}-{short}{value:g}", name, chosen, {key: value})


def _ewc() -> Iterator[Recipe]:
    for name, images in DATA.items():
        rows = {
            "fedavg": Method("fedavg"),
            "ewc": dataclasses.replace(apfl(images, z=images.rounds), caveat="APFL that never decomposes"),
            "decomposition": dataclasses.replace(apfl(images, mu=0.0), caveat="APFL without consolidation"),
            "apfl_ni": dataclasses.replace(apfl(images), above=("fedavg",)),
        }
        yield from _rows("apfl-ewc", name, name, rows)


def _rows(
    table: str, column: str, name: str, rows: dict[str, Method], changes: dict[str, Any] | None = None
) -> Iterator[Recipe]:
    """Yield the recipes of a column; `recipes` places the runs of equal settings in one folder."""
    images = DATA[name]
    experiment = Experiment(
        model=images.model,
        task=images.task,
        data=DataSettings(**images.data),
        local=Local(epochs=5, batch_size=10, optimiser=SGD(lr=images.lr)),
        run=RunSettings(
            rounds=images.rounds,
            cohort_size=10,
            monitor="personal_accuracy",
            checkpoint_every=10,
            keep_every=1000,
            evaluate_training=True,
        ),
    )
    experiment = dataclasses.replace(
        experiment, clients=dataclasses.replace(experiment.clients, sampler="by_round")
    ).with_all(changes or {})
    for row, method in rows.items():
        accuracy = _published(name, row, method.of(experiment)) if images.comparable else None
        yield method.recipe(
            table, column, row, experiment,
            accuracy=accuracy,
            caveat="; ".join(filter(None, (images.caveat, method.caveat))) or None,
            target=accuracy is not None,
            measure="personal_accuracy_by_samples",
            reading="mean",
            above=method.above if images.comparable else (),
        )  # fmt: skip


def _published(name: str, row: str, asked: Experiment) -> float | None:
    """Return the printed mean accuracy of a row; None where none is printed.

    That of FedAvg follows from the printed gain.
    """
    table, lr = TABLE_2.get((name, asked.local.epochs)), asked.local.optimiser.lr
    if table is None or lr != DATA[name].lr or "z" in asked.settings.get("apfl_ni", {}):
        return None
    if row.startswith("apfl_ni"):
        return table[LAMBDAS.index(asked.settings["apfl_ni"]["lam"])]
    return round(table[-1] - GAINS[name], 2) if row == "fedavg" and asked.local.epochs == 5 else None
