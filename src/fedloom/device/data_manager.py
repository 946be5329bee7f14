"""The Data Manager: a device's own examples, which are never sent; what is computed of them tells of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedloom.core.errors import SettingError, SettingWarning, warn
from fedloom.data import Dataset, Federation, Partition, by_lists, federate
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import DataSettings
from fedloom.wire.registration import Registration, check_names


class DataManager:
    """The examples of one device: `source` is what `fedloom run --data` takes, or a folder with one such file or with
    images; or what `loaded` made of it. `settings`: those of the server, which say how many are held out and how they
    are changed while training. Where the source has test examples of its own, by these the device's model is judged.
    """

    def __init__(self, source: str | Dataset, settings: DataSettings, seed: int) -> None:
        self.federation = _federation(loaded(source) if isinstance(source, str) else source, settings, seed)

    def registration(self, id: str, model: str = "") -> Registration:
        """Return what the server hears of the examples."""
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


def loaded(source: str) -> Dataset:
    """Return the examples of a source, as they are stored; of a table without `split`, all rows are to train on."""
    found = catalogue.data(_named(source), whole=True)
    warn_of_own_scale(source, found)
    return found


def warn_of_own_scale(source: str, found: Dataset) -> None:
    """Say that columns which are prepared at a device, or at the server, are scaled unlike those of a simulation."""
    if found.train.preparation is not None:
        warn(
            "with devices each table is prepared by its own rows alone, where a simulation takes the means, deviations "
            f"and medians of all clients' rows, got {source!r}: a simulated result does not carry over, and a trained "
            "model has no scale of its own; scale the columns of all tables by the same numbers first, and leave "
            "prepare out",
            SettingWarning,
        )


def _federation(source: Dataset, d: DataSettings, seed: int) -> Federation:
    found = catalogue.normalise(d.normalise, catalogue.numbered(source, d.classes))
    held_out, train, own = found.held_out, found.train, found.test
    if held_out is None and own is not None:
        train, held_out = found._replace(owners=None).merged().train, np.arange(len(train) + len(own)) >= len(train)
    return federate(
        catalogue.augment(d.augment, train),
        by_lists([np.arange(len(train))]),
        test_fraction=d.test_fraction,
        val_fraction=d.val_fraction,
        held_out=held_out,
        seed=seed,
    )


def _named(source: str) -> str:
    """Name a folder by the file in it, or as a folder of images."""
    folder = Path(source)
    if not folder.is_dir():
        if "/" in source and ":" not in source and not Path(source.partition("?")[0]).exists():
            raise SettingError(f"--data names a file, a folder or data by name, and there is no {source}: name another")
        return source
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npz", ".csv"))
    if len(files) > 1:
        raise SettingError(f"{folder} holds {', '.join(path.name for path in files)}: name one of them with --data")
    return str(files[0]) if files else f"images:{folder}"
