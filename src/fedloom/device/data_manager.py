"""Data Manager: a device's own examples, which are never sent; results computed from them may reveal some."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.data import Dataset, Federation, Partition, by_lists, federate
from fedloom.data.statistics import CommonPreparation
from fedloom.experiments import catalogue
from fedloom.experiments.sections import DataSettings
from fedloom.wire.registration import Registration, check_names


class DataManager:
    """Examples of one device.

    `source`: as for `fedloom run --data`, or a folder with one such file or with images, or the result of
    `load_examples`. `settings`: those of the server, with the held-out fractions and the augmentation. If the source
    has test examples, the device's model is evaluated on them.
    """

    def __init__(self, source: str | Dataset, settings: DataSettings, seed: int) -> None:
        self.federation = _federation(load_examples(source) if isinstance(source, str) else source, settings, seed)

    def registration(self, id: str, model: str = "") -> Registration:
        """Return the registration of the examples for the server."""
        f = self.federation

        def counts(rows: Partition | None) -> tuple[int, ...]:
            none = (0,) * f.num_classes
            return none if rows is None else tuple(map(int, rows.counts(f.train.y, f.num_classes)[0]))

        dtype = str(f.train.x.dtype).removeprefix("torch.")
        return Registration(
            id, counts(f.partition), counts(f.local_test), counts(f.local_val), f.train.shape, dtype, model,
            check_names(f.train.classes, "classes", f.num_classes),
            check_names(f.train.columns, "columns", len(f.train.columns)),
        )  # fmt: skip


def load_examples(source: str) -> Dataset:
    """Return the stored examples of a source; all rows of a table without `split` are for training."""
    if catalogue.is_sites(source):
        raise SettingError(f"a device holds the table of one site, got {source!r}: name one file with --data")
    dataset = catalogue.data(_resolve_source(source), whole=True)
    if dataset.train.y.is_floating_point():
        raise SettingError(
            f"devices are evaluated by class, got {source!r} with targets that are no classes: name a column of "
            "classes with label=, or simulate with fedloom run"
        )
    warn_about_own_scale(source, dataset)
    return dataset


def warn_about_own_scale(source: str, dataset: Dataset) -> None:
    """Warn if columns were prepared here, since a simulation scales them by the rows of all clients.

    Raises:
        SettingError: they were to be prepared by the statistics of all clients.
    """
    made = dataset.train.preparation
    if made is not None and isinstance(made.transformer, CommonPreparation):
        raise SettingError(
            f"devices do not exchange statistics of their columns yet, got {source!r}: scale the columns of all tables "
            "by the same numbers and leave prepare out, or simulate with fedloom run"
        )
    if dataset.train.preparation is not None:
        warn(
            "with devices each table is prepared by its own rows alone, where a simulation takes the means, deviations "
            f"and medians of all clients' rows, got {source!r}: a simulated result does not carry over, and a trained "
            "model has no scale of its own; scale the columns of all tables by the same numbers first, and leave "
            "prepare out",
            SettingWarning,
        )


def _federation(source: Dataset, d: DataSettings, seed: int) -> Federation:
    dataset = catalogue.normalise(d.normalise, catalogue.numbered(source, d.classes))
    held_out, train, test = dataset.held_out, dataset.train, dataset.test
    if held_out is None and test is not None:
        train, held_out = dataset._replace(owners=None).merged().train, np.arange(len(train) + len(test)) >= len(train)
    arrives, drift = catalogue.changes(d.arrives, d.drift, seed)
    return federate(
        catalogue.augment(d.augment, train),
        by_lists([np.arange(len(train))]),
        test_fraction=d.test_fraction,
        val_fraction=d.val_fraction,
        held_out=held_out,
        arrives=arrives,
        drift=drift,
        seed=seed,
    )


def _resolve_source(source: str) -> str:
    """Return the source of a folder: the file in it, or its images."""
    folder = Path(source)
    if not folder.is_dir():
        if "/" in source and ":" not in source and not Path(source.partition("?")[0]).exists():
            raise SettingError(
                f"--data takes a file, a folder or a name of data, and there is no {source}: name another"
            )
        return source
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npz", ".csv", ".parquet"))
    if len(files) > 1:
        raise SettingError(f"{folder} holds {', '.join(path.name for path in files)}: name one of them with --data")
    return str(files[0]) if files else f"images:{folder}"
