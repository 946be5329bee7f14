"""Recipes for the tables of DENSE: what was published, what is lost, and the settings that we take.

Zhang, Chen, Li, Lyu, Wu, Ding, Shen, Wu. *DENSE: Data-Free One-Shot Federated Learning.* NeurIPS 2022.
https://arxiv.org/abs/2112.12371. A run is one round in which all clients train and upload, and then an epoch of the
server for each further round. docs/dense.md says which setting comes from where.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedloom.coordinator import RunSettings
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_sections import DataSettings
from fedloom_papers.dense.published import ABOUT, NOTES, TABLES, cells
from fedloom_papers.reproduction.recipe import Beginning, Method as Row, Recipe

PARTITION_SEED = 1  # of the README's run, for every seed of a run
EPOCHS = 200  # of the server
LOCAL_EPOCHS = 200
ALPHAS = (0.1, 0.3, 0.5)
FIVE = "resnet18,dense_cnn1,dense_cnn2,wrn16_1,wrn40_1"  # of the clients 0 to 4; the student is the first


class Images(NamedTuple):
    """One data set: its source, its networks, how images are augmented, whose images FedDF learns from."""

    source: str
    models: tuple[str, ...]  # which of them made the published tables is not known
    augment: str
    public: dict[str, Any]
    why: str | None = None  # what is doubtful about all of its recipes


def _public(source: str) -> dict[str, Any]:
    return {"data.public_source": source}


DATA = {
    "mnist": Images("mnist", ("dense_cnn_mnist", "resnet18"), "none", _public("fashion_mnist")),
    "fmnist": Images("fashion_mnist", ("dense_cnn_mnist", "resnet18"), "none", _public("mnist")),
    "cifar10": Images("cifar10", ("dense_cnn2", "resnet18"), "crop:4,flip", _public("cifar100")),
    "svhn": Images("svhn", ("dense_cnn2", "resnet18"), "none", _public("cifar100")),
    "cifar100": Images("cifar100", ("dense_cnn_cifar100", "resnet18"), "crop:4,flip", _public("cifar10")),
    "tiny": Images(
        "images",
        ("resnet18",),
        "flip",
        {"data.public": 10_000},
        "Tiny-ImageNet as folders of images of one size, all in colour; the released code does not run with it. Its "
        "rotation by up to 20 degrees is left out; FedDF's public images are 10,000 of its own, which no client has",
    ),
}
NETWORKS = {
    "dense_cnn_mnist": "cnn",
    "dense_cnn2": "cnn",
    "dense_cnn_cifar100": "cnn",
    "resnet18": "resnet18",
}
LAMBDA1 = (0.0, 0.01, 0.1, 1.0)
SMALL_EPOCHS = 15  # of the server, where L_BN is weighed
SAME_UPLOAD = ("dense", "fed_adi")
"""Methods whose settings matter to the server alone, which is in the same state after the upload."""
SHAPES = ("schedule", "student", "distill.optimiser", "distill.momentum")
"""But for these of their settings: what the server keeps is of another shape with others."""
_WHICH = (
    "which network made the published table is not certain: the scripts' default are the CNNs, FuseFL, which prints "
    "the table again, has ResNet-18 everywhere"
)
_WITHOUT_BATCHNORM = "this network has no BatchNorm, so there is no L_BN"
_ADI_WITHOUT_BATCHNORM = "this network has no BatchNorm, so what makes Fed-ADI's images natural is absent"
_FEDDF = (
    "not free of data: it learns from {public}, without labels; which images the published FedDF had is not said; "
    "10,000 steps, and none is taken back by a validation set"
)


@dataclass(frozen=True)
class Method(Row):
    """One row: how many rounds its run has, and what is read of it."""

    rounds: int = 1 + EPOCHS
    measure: str = "global_accuracy"


def dense(model: str, **own: Any) -> dict[str, Any]:
    """Return DENSE's settings, with no L_BN where no network has BatchNorm."""
    bare = all(name.startswith("dense_cnn") and "mnist" not in name for name in model.split(","))
    return {"T_G": 30, "lambda1": 0.0 if bare else 1.0, "lambda2": 0.5, "T": 20.0, "schedule": "pool", **own}


def methods(data: str, model: str, clients: int = 5) -> dict[str, Method]:
    """Return the rows of a column of Table 1, or of the table of numbers of clients."""
    bare = not dense(model)["lambda1"]
    images, ensemble = DATA[data], "accuracy of the mean of the clients' logits, right after the upload"
    public = images.public.get("data.public_source", "10,000 training images")
    # What is printed for more clients contradicts it once: SVHN with 50.
    below = ("fedavg", "feddf", "fed_dafl", "fed_adi", "dense") if clients == 5 else ()
    return {
        "fedavg": Method("fedavg", {"aggregation": "uniform"}, rounds=1),
        "feddf": Method(
            "feddf", {"aggregation": "uniform", "steps": 10_000}, images.public, rounds=1,
            caveat=_FEDDF.format(public=public),
        ),
        "fed_dafl": Method("fed_dafl", dafl(data), above=("fedavg",)),
        "fed_adi": Method(
            "fed_adi",
            {"alpha_f": 0.0 if bare else 10.0, "alpha_c": 10.0, "steps": 2000},
            above=("fedavg",),
            caveat=_ADI_WITHOUT_BATCHNORM if bare else None,
        ),
        "dense": Method("dense", dense(model), above=("fedavg",), caveat=_WITHOUT_BATCHNORM if bare else None),
        "ensemble": Method(
            "dense", dense(model), rounds=1, measure="ensemble_accuracy", above=below, caveat=ensemble,
        ),
    }  # fmt: skip


def dafl(data: str) -> dict[str, Any]:
    """Return Fed-DAFL's settings: those of DAFL's code for MNIST, CIFAR-10 and CIFAR-100.

    SVHN has those of CIFAR-10, Tiny those of CIFAR-100.
    """
    if data in ("mnist", "fmnist"):
        adam = {"distill.optimiser": "adam", "distill.lr": 2e-3, "distill.weight_decay": 0.0}
        sizes = {"nz": 100, "synthesis.batch_size": 512, "synthesis.lr": 0.2, "distill.batch_size": 512}
        return {"oh": 1.0, "ie": 5.0, "a": 0.1, **sizes, **adam}
    return {"oh": 0.5, "ie": 20.0, "a": 0.1} if data in ("cifar100", "tiny") else {"oh": 0.05, "ie": 5.0, "a": 0.01}


def recipes() -> dict[str, list[Recipe]]:
    """Return the recipes of each table.

    Tables that share a cell share its runs, and rows with the same clients share the round of uploads.
    """
    places, uploads = dict[str, str](), dict[str, Beginning]()
    made = {table: _published(table) for table in TABLES}
    made |= {
        "dense-heterogeneous": _heterogeneous(),
        "dense-ldam": _ldam(),
        "dense-rounds": _rounds(),
        "dense-ablation": _ablation(),
        "dense-lambda1": _lambda1(),
    }
    out: dict[str, list[Recipe]] = {}
    for table in ABOUT:
        out[table] = []
        for recipe in made[table]:
            place = places.setdefault(_apart_from_rounds(recipe.experiment), recipe.place)
            begins = None
            if recipe.experiment.algorithm in SAME_UPLOAD:
                begins = _upload(recipe)
                begins = uploads.setdefault(_apart_from_rounds(begins.experiment), begins)
            out[table].append(dataclasses.replace(recipe, place=place, begins=begins))
    return out


def _upload(recipe: Recipe) -> Beginning:
    """Return the round of uploads of a recipe."""
    e, task = recipe.experiment, f"-{recipe.experiment.task}"
    own = dense(e.model) | (_small(e.model) if recipe.table == "dense-lambda1" else {})
    made = dataclasses.replace(e, algorithm="dense", settings={"dense": own}).changed("run.rounds", 1)
    return Beginning(f"{recipe.table}/{recipe.column}/uploads{task.removesuffix('-classification')}", made, SHAPES)


def _apart_from_rounds(experiment: Experiment) -> str:
    """Return a text that is equal for two experiments that differ in nothing but rounds: one run serves both.

    The ensemble is evaluated in the first round of DENSE's run. A run of five rounds of uploads begins like one of one.
    """
    settings = dataclasses.asdict(experiment)
    del settings["run"]["rounds"]
    return json.dumps(settings, sort_keys=True, default=str)


_COLUMN = re.compile(r"(?P<data>[a-z]+\d*)-a(?P<alpha>[\d.]+)-m(?P<clients>\d+)")


def _published(table: str) -> Iterator[Recipe]:
    for cell in cells(table):
        found = _COLUMN.fullmatch(cell.column)
        assert found is not None
        data, alpha, clients = found["data"], float(found["alpha"]), int(found["clients"])
        ours = table in ("dense-coboosting", "dense-readme")  # one network of which is known that it was a CNN
        models = DATA[data].models[:1] if ours else DATA[data].models
        for model in models:
            column = cell.column if ours else f"{cell.column}-{NETWORKS[model]}"
            method = methods(data, model, clients)[cell.row]
            notes = [NOTES[cell.note]] if cell.note else []
            local = LOCAL_EPOCHS
            if table == "dense-readme":
                local = 400
                if cell.row != "fedavg":
                    method = dataclasses.replace(method, own={**method.own, "lambda2": 1.0, "distill.lr": 0.005})
            elif table == "dense-coboosting":
                notes.append(
                    "their CNN of five layers is not described in what we hold: DENSE's own stands for it; local "
                    "epochs, too, are DENSE's"
                )
            else:
                notes.append(_WHICH)
            yield _recipe(
                table, column, cell.row, method, data, alpha, clients, model, local, notes,
                accuracy=cell.accuracy,
                target=cell.accuracy is not None and cell.note is None and table != "dense-coboosting",
            )  # fmt: skip


def _heterogeneous() -> Iterator[Recipe]:
    """Yield recipes of ResNet-18, CNN1, CNN2, WRN-16-1 and WRN-40-1; one-shot FedAvg cannot average them."""
    lost = "published at these alphas, in words: DENSE is best; the numbers are lost"
    rate = "the released script trains all clients at 0.001, which is set for the first and never set back; here 0.01"
    for alpha in ALPHAS:
        rows = methods("cifar10", FIVE)
        del rows["fedavg"]
        for row, method in rows.items():
            if row == "dense":
                method = dataclasses.replace(method, above=("feddf", "fed_dafl", "fed_adi"))
            if row == "ensemble":
                method = dataclasses.replace(method, above=("feddf", "fed_dafl", "fed_adi", "dense"))
            if row == "feddf":  # one student, as the others have, from random weights
                method = dataclasses.replace(method, own={**method.own, "student": "resnet18"})
            column = f"cifar10-a{alpha:g}-m5-five"
            yield _recipe(
                "dense-heterogeneous", column, row, method, "cifar10", alpha, 5, FIVE, LOCAL_EPOCHS, [lost, rate]
            )


def _ldam() -> Iterator[Recipe]:
    """Yield recipes of DENSE with clients that train with margins, beside DENSE."""
    published = "published at these alphas, in words: LDAM helps where labels are highly skewed; its networks are lost"
    ours = "ours: the published comparison is on CIFAR-10 and SVHN"
    drw = "whether LDAM was published with deferred reweighting is not said: no order"
    for data, model in (("fmnist", "dense_cnn_mnist"), *((d, m) for d in ("cifar10", "svhn") for m in DATA[d].models)):
        for alpha in ALPHAS:
            column = f"{data}-a{alpha:g}-m5-{NETWORKS[model]}"
            helped = ("dense",) if alpha == min(ALPHAS) and data != "fmnist" else ()
            margins = {"model": f"{model}_cosine", "task": "ldam"}
            for row, run, above, said in (
                ("dense", {}, (), []),
                ("dense_ldam", margins, helped, []),
                ("dense_ldam_drw", {**margins, "task": "ldam_drw"}, (), [drw]),
            ):
                method = dataclasses.replace(methods(data, model)["dense"], run=run, above=above)
                notes = [ours if data == "fmnist" else published, *said]
                notes += ["the student has the head of scaled cosines too"] if run else []
                yield _recipe("dense-ldam", column, row, method, data, alpha, 5, model, LOCAL_EPOCHS, notes)


def _rounds() -> Iterator[Recipe]:
    """Yield recipes of several rounds of uploads, each followed by the server's epochs."""
    lost = (
        "published in words: more rounds are better, best at 5; local epochs of a round are a weak recollection (10), "
        "clients start from the student, pool and noise are new in each round (ours)"
    )
    for data, model in (("fmnist", "dense_cnn_mnist"), ("cifar10", "dense_cnn2")):
        for alpha in ALPHAS:
            for count in range(1, 6):
                above = tuple(f"dense-r{fewer}" for fewer in range(1, count)) if count == 5 else ()
                method = Method("dense", dense(model, epochs=EPOCHS), rounds=count * (1 + EPOCHS), above=above)
                column = f"{data}-a{alpha:g}-m5-cnn"
                yield _recipe("dense-rounds", column, f"dense-r{count}", method, data, alpha, 5, model, 10, [lost])


def _ablation() -> Iterator[Recipe]:
    """Yield recipes of DENSE, whole and without its terms; networks with BatchNorm, since the others have no L_BN."""
    lost = "published in words: each term helps; data, alphas and numbers are lost"
    without: dict[str, dict[str, Any]] = {
        "dense": {},
        "dense-without_bn": {"lambda1": 0.0},
        "dense-without_div": {"lambda2": 0.0},
        "dense-ce_only": {"lambda1": 0.0, "lambda2": 0.0},
    }
    for data, model in (("fmnist", "dense_cnn_mnist"), ("cifar10", "resnet18")):
        for alpha in ALPHAS:
            for row, own in without.items():
                above = tuple(other for other in without if other != "dense") if row == "dense" else ()
                method = Method("dense", dense(model, **own), above=above)
                column = f"{data}-a{alpha:g}-m5-{NETWORKS[model]}"
                yield _recipe("dense-ablation", column, row, method, data, alpha, 5, model, LOCAL_EPOCHS, [lost])


def _lambda1() -> Iterator[Recipe]:
    """Yield recipes of DENSE over the weight of L_BN, of networks with few and with many BatchNorm layers; small."""
    for column, model, alpha, epochs in (
        ("fmnist10k-a0.1-m5-cnn", "dense_cnn_mnist", 0.1, 10),
        ("fmnist10k-a0.5-m5-cnn", "dense_cnn_mnist", 0.5, 10),
        ("fmnist10k-a0.1-m5-deep", "dense_cnn_mnist_deep", 0.1, 3),
    ):
        for weight in LAMBDA1:
            own = dense(model, lambda1=weight) | _small(model)
            run = {"data.examples": 10_000, "local.batch_size": 32}
            method = Method("dense", own, run, rounds=1 + SMALL_EPOCHS)
            row = f"dense-lambda{weight:g}"
            yield _recipe("dense-lambda1", column, row, method, "fmnist", alpha, 5, model, epochs, ["ours"])


def _small(model: str) -> dict[str, Any]:
    """Return sizes of what the server makes and learns from, for a computer without a GPU."""
    batch = 32 if model.endswith("_deep") else 64
    return {"synthesis.batch_size": batch, "distill.batch_size": batch, "ngf": 16}


def _recipe(
    table: str,
    column: str,
    row: str,
    method: Method,
    data: str,
    alpha: float,
    clients: int,
    model: str,
    epochs: int,
    notes: list[str],
    *,
    accuracy: float | None = None,
    target: bool = False,
) -> Recipe:
    images = DATA[data]
    experiment = Experiment(
        model=model,
        data=DataSettings(
            source=images.source,
            partition=f"dirichlet:{alpha:g}",
            clients=clients,
            partition_seed=PARTITION_SEED,
            test_fraction=0.0,
            normalise="0/1",  # pixels from 0 to 1, as the generator makes them
            augment=images.augment,
        ),
        local=Local(epochs=epochs, batch_size=128, optimiser=SGD(lr=0.01, momentum=0.9)),
        run=RunSettings(rounds=method.rounds, cohort_size=clients, checkpoint_every=5, keep_every=1000),
    )
    said = [method.caveat, *notes, images.why]
    caveat = "; ".join(note for note in said if note) or None
    return method.recipe(
        table, column, row, experiment, accuracy=accuracy, caveat=caveat, target=target, measure=method.measure
    )
