"""Partitions by the names that people type."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

import numpy as np
import torch

from fedloom.core.errors import SettingError
from fedloom.core.grammar import Named, by_name, find
from fedloom.data import (
    Dataset,
    Partition,
    balanced_dirichlet,
    by_lists,
    dirichlet,
    iid,
    label_blocks,
    lognormal,
    lognormal_sizes,
    natural,
    pathological,
    quantiles,
    quantity,
    shards,
)
from fedloom.wording import local_path

Values = Mapping[str, Any]


@dataclass(frozen=True)
class NamedPartition:
    """Partition that has a name."""

    form: str
    """Its name and what stands behind it, `NAME:VALUE`."""
    function: Callable[..., Any]
    """The function of `fedloom.data` that makes it."""
    values: Values = field(default_factory=dict)
    """Parameters of `make` or `function` that stand behind the name, in this order, with their defaults."""
    fixed: Values = field(default_factory=dict)
    """Other arguments of `function`."""
    make: Callable[..., Partition] | None = None
    """Calls `function` with data, number of clients, seed and values, where it takes no labels, clients and seed."""
    what: str = ""
    """Its description in Markdown, in the place of the first sentence of `function`."""
    paper: str = "-"
    """Its source."""
    needs_classes: bool = True
    """True if it divides classes, and so refuses targets that are none."""

    @property
    def named(self) -> Named:
        """Read its values, of which the last may be missing."""
        types = get_type_hints(self.make or self.function)
        return Named((self.form,), self.function, tuple(types[name] for name in self.values), fewer=True)

    @property
    def sentence(self) -> str:
        """Say what it does, in Markdown."""
        return self.what or " ".join((self.function.__doc__ or "").partition("\n\n")[0].split())

    def of(self, dataset: Dataset, num_clients: int, seed: int, values: Values) -> Partition:
        """Make the partition.

        Raises:
            SettingError: it divides classes, and the data have targets that are none; or the function refuses a value.
        """
        train = dataset.train
        if self.needs_classes and not train.has_classes:
            told = f" ({', '.join(train.targets)})" * bool(train.targets)
            others = ", ".join(one.form for one in PARTITIONS.values() if not one.needs_classes)
            raise SettingError(
                f"partition {self.form} divides classes, and {train.name} has targets that are none{told}: use one of "
                f"{others} [FL-DATA-028]"
            )
        try:
            if self.make is not None:
                return self.make(dataset, num_clients, seed, **values)
            made: Partition = self.function(dataset.train.y, num_clients, seed=seed, **values, **self.fixed)
        except SettingError:
            raise
        except ValueError as error:
            raise SettingError(self._in_settings(str(error))) from None
        return made

    def _in_settings(self, text: str) -> str:
        """Return a message of the function in words of settings: the letters of the form, and data.clients."""
        name, *letters = self.form.split(":")
        said = text = text.replace("num_clients", "data.clients")
        for value, letter in zip(self.values, letters, strict=False):
            if letter.isupper() and value != "partition":
                said = re.sub(rf"\b{value} = ", f"{name}:", said) if len(letters) == 1 else said
                said = re.sub(rf"\b{value}\b", letter, said)
        return said if said == text else f"partition {self.form}: {said}"


def _natural(dataset: Dataset, num_clients: int, seed: int) -> Partition:
    if dataset.owners is None:
        raise SettingError(
            f"partition natural needs data with natural clients, and {dataset.train.name} has none: name them "
            f"(client=COLUMN of a table, clients_train in a .npz file), or use another: {_forms('natural')}"
        )
    return natural(dataset.owners, dataset.train.owners)


def _by_quantiles(dataset: Dataset, num_clients: int, seed: int, num_bins: int, partition: str) -> Partition:
    """Divide the quantiles of a target as another partition divides classes."""
    if not dataset.train.y.is_floating_point():
        raise SettingError(
            f"partition quantiles:Q:P divides targets that are no classes, and {dataset.train.name} has classes: use "
            f"{partition}"
        )
    name = partition.partition(":")[0]
    if name not in PARTITIONS or not PARTITIONS[name].needs_classes or partition.endswith("overlapping"):
        by_class = ", ".join(one.form.removesuffix("|overlapping") for one in PARTITIONS.values() if one.needs_classes)
        raise SettingError(f"P of partition quantiles:Q:P must be one of {by_class}, got {partition!r}: name one")
    bins = torch.from_numpy(quantiles(dataset.train.y, num_bins))
    train = dataclasses.replace(dataset.train, y=bins, num_classes=int(bins.max()) + 1, classes=(), targets=())
    made = PARTITIONS[name].of(dataset._replace(train=train), num_clients, seed, _values(partition))
    return dataclasses.replace(made, name=f"{made.name} of {train.num_classes} quantiles")


def _disjoint_sizes(
    dataset: Dataset, num_clients: int, seed: int, classes_per_client: int, rows: Literal["disjoint", "overlapping"]
) -> Partition:
    lists = lognormal_sizes(dataset.train.y, num_clients, seed, classes_per_client)
    return Partition.from_lists(lists, f"lognormal sizes s={classes_per_client}", seed)


def _by_file(dataset: Dataset, num_clients: int, seed: int, path: str) -> Partition:
    return by_lists(_lists(path))


PARTITIONS: dict[str, NamedPartition] = by_name(
    (
        NamedPartition("iid", iid, needs_classes=False),
        NamedPartition(
            "shards:S", shards, {"shards_per_client": 2}, paper="FedNTD, after McMahan et al. (2017)"
        ),
        NamedPartition(
            "dirichlet:ALPHA", dirichlet, {"alpha": 0.1}, paper="FedNTD, as FedML and NIID-Bench"
        ),
        NamedPartition(
            "plain_dirichlet:ALPHA", dirichlet, {"alpha": 0.1}, {"min_size": 2, "capped": False},
            what="The same without its cap: each class is divided on its own, and sizes differ much more.",
            paper="Yurochkin et al. (2019), Hsu et al. (2019)",
        ),
        NamedPartition("balanced_dirichlet:BETA", balanced_dirichlet, {"beta": 0.1}, paper="pFedSD, with seed 7"),
        NamedPartition("pathological:S", pathological, {"classes_per_client": 2}, paper="pFedSD, with seed 7"),
        NamedPartition(
            "lognormal:SIGMA:S:LEAST", lognormal, {"sigma": 2.0, "classes_per_client": 2, "min_per_class": 5},
            paper="FedProx, MNIST",
        ),
        NamedPartition(
            "lognormal_sizes:S:disjoint|overlapping", lognormal_sizes, {"classes_per_client": 3, "rows": "disjoint"},
            make=_disjoint_sizes,
            what="Draw lognormal sizes, and give every client equally many examples of neighbouring classes. "
            "`overlapping`: as the published sampler, by whose mistake clients share examples; each has a copy.",
            paper="FedProx, FEMNIST",
        ),
        NamedPartition("label_blocks:S", label_blocks, {"classes_per_client": 2}, paper="ours, for KT-pFL's settings"),
        NamedPartition(
            "quantity:BETA", quantity, {"beta": 0.5}, paper="NIID-Bench (Li et al., 2022)", needs_classes=False
        ),
        NamedPartition(
            "quantiles:Q:P", quantiles, {"num_bins": 10, "partition": "dirichlet:0.5"}, make=_by_quantiles,
            what="Number Q quantiles of the target, and divide them as the partition P divides classes.",
            needs_classes=False,
        ),
        NamedPartition("natural", natural, make=_natural, needs_classes=False),
        NamedPartition(
            "lists:FILE.json", by_lists, {"path": ""}, make=_by_file,
            what="Give client k the rows that list k of a file names.", needs_classes=False,
        ),
    )
)  # fmt: skip


def _forms(without: str = "") -> str:
    return ", ".join(partition.form for name, partition in PARTITIONS.items() if name != without)


def handed_out(text: str, dataset: Dataset, num_clients: int, seed: int) -> tuple[Dataset, Partition]:
    """Return the data and a partition of them; where clients share examples, each has a copy of its own."""
    values = _values(text)
    if values.get("rows") != "overlapping":
        return dataset, partition(text, dataset, num_clients, seed)
    rows = lognormal_sizes(dataset.train.y, num_clients, seed, values["classes_per_client"], overlapping=True)
    owners = np.repeat(np.arange(num_clients), [len(own) for own in rows])
    dataset = dataset.select(np.concatenate(rows))
    return dataset, dataclasses.replace(natural(owners), name=f"{text}, with copies", seed=seed)


def partition(text: str, dataset: Dataset, num_clients: int, seed: int) -> Partition:
    """Make a partition by name.

    `natural` has as many clients as the data have owners, `lists:FILE.json` as many as the file has lists.

    Raises:
        SettingError: there is no such partition, or what stands behind its name is of another type.
    """
    values = _values(text)
    return PARTITIONS[text.partition(":")[0]].of(dataset, num_clients, seed, values)


def _values(text: str) -> dict[str, Any]:
    """Return the values that follow a partition's name, with defaults for those that are missing."""
    found = find("partition", text, PARTITIONS)
    return {**found.values, **dict(zip(found.values, found.named.values("partition", text), strict=False))}


def _lists(path: str) -> list[list[int]]:
    try:
        found = json.loads(local_path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(
            f"partition lists:FILE.json must name a file of lists of rows, got {path!r}: {error}"
        ) from None
    if not isinstance(found, list) or not all(isinstance(rows, list) for rows in found):
        raise SettingError(f"{path} must hold one list of rows for each client, [[0, 5], [1, 2, 3], ...]")
    if any(not isinstance(row, int) or isinstance(row, bool) for rows in found for row in rows):
        raise SettingError(f"{path} must hold rows as whole numbers, counted from 0")
    return found
